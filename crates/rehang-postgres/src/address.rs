//! Address of the server and how rehang connects to it: read as libpq reads it, with the secrets from
//! where libpq finds them.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rehang_connect::{OwnRoots, Roots, environment};
use rehang_core::{Error, Result};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Address with everything that it takes to connect there.
pub(crate) struct Address {
    config: Config,
    tls: MakeRustlsConnect,
    /// Authorities that are trusted, in words for messages.
    trusted: String,
}

/// The key of a configuration that names authorities.
pub(crate) const ROOT_CERTIFICATES: &str = "[gallery] root_certificates";

/// How far a server has to prove who it is, in libpq's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verify {
    /// No proof is asked for: `disable`, `prefer` and `require`.
    Not,
    /// A certificate for the server's name is asked for: `verify-full`, and `verify-ca` too, which libpq
    /// would not hold to the name.
    Full,
}

impl Address {
    /// Reads `postgresql://user@host:5432/database?sslmode=verify-full`, or `host=… user=…`. A password that
    /// is not in it comes from `PGPASSWORD` or from the password file (`PGPASSFILE`, or `.pgpass` in the
    /// home folder). Host, port, database and user that are not in it come from `PGHOST`, `PGPORT`,
    /// `PGDATABASE` and `PGUSER`.
    ///
    /// As in libpq, `sslmode=require` encrypts and asks for no proof of who the server is, unless
    /// `sslrootcert` names the authorities. `verify-full` asks for a proof by these, or by the usual
    /// authorities where none are named; `verify-ca` is held to the same. `sslcert` and `sslkey` name the
    /// certificate and the key, not encrypted, by which the server knows the client. Each has its variable:
    /// `PGSSLMODE`, `PGSSLROOTCERT`, `PGSSLCERT`, `PGSSLKEY`.
    ///
    /// `roots_file` is a file with authorities that are trusted besides the usual ones. With it, the server
    /// has to prove who it is in any case, by these or by those of `sslrootcert`.
    ///
    /// An address may be written as an application's own driver has it: in quotes, with `jdbc:` or the name
    /// of a driver (`postgresql+psycopg://`) in front, with `ssl=true` (`verify-full`) or
    /// `sslmode=no-verify`. Options that only such a driver reads are passed over.
    pub(crate) fn parse(text: &str, roots_file: Option<&Path>) -> Result<Self> {
        Self::parse_with(text, roots_file, &environment)
    }

    /// Reads an address as [`Address::parse`] does, with the variables that it is given.
    fn parse_with(
        text: &str,
        roots_file: Option<&Path>,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self> {
        let wrong = |detail: String| Error::option("the address of the server", "given", detail);
        let text = as_libpq(text)?;
        if is_cut_short(&text) {
            return Err(wrong(
                "postgresql://USER@HOST:PORT/DATABASE with one @; write %40 for any other".into(),
            ));
        }
        let (text, options) = TlsOptions::take(&text, variable)?;
        let port = variable("PGPORT").map(|port| {
            port.parse::<u16>().map_err(|_| Error::option("PGPORT", &port, "a port, such as 5432"))
        });
        let port = port.transpose()?;
        let text = port.map_or_else(|| text.clone(), |port| with_port(&text, port));
        // The reason never repeats the address, which may hold a password.
        let mut config = Config::from_str(&text)
            .map_err(|error| wrong(format!("postgresql://USER@HOST:PORT/DATABASE ({error})")))?;
        let (mode, verify) = options.mode_and_proof(roots_file)?;
        config.ssl_mode(mode);
        notice_silence(&mut config);
        fill_in(&mut config, port, variable);
        let client_files = options.client_files()?;
        let roots = match verify {
            Verify::Not => None,
            Verify::Full => Some(trusted_roots(options.authorities.as_deref(), roots_file, variable)?),
        };
        let tls = client_config(roots.as_ref(), client_files)?;
        let trusted = roots.map_or_else(String::new, |roots| roots.trusted().to_owned());
        Ok(Self { tls: MakeRustlsConnect::new(tls), trusted, config })
    }

    /// Returns the configuration of a connection, with settings of the session besides
    /// those that the address has.
    pub(crate) fn with_options(&self, more: &str) -> Config {
        let mut config = self.config.clone();
        let options = [self.config.get_options().unwrap_or_default(), more].join(" ");
        if !options.trim().is_empty() {
            config.options(options.trim());
        }
        config
    }

    pub(crate) fn tls(&self) -> MakeRustlsConnect {
        self.tls.clone()
    }

    /// Names the authorities that are trusted, for messages.
    pub(crate) fn trusted(&self) -> &str {
        &self.trusted
    }

    /// Returns the part of the address that may be shown: `host:port/database`.
    pub(crate) fn shown(&self) -> String {
        let host = match self.config.get_hosts().first() {
            Some(Host::Tcp(host)) => host.clone(),
            #[cfg(unix)]
            Some(Host::Unix(path)) => path.display().to_string(),
            None => "localhost".into(),
        };
        let database = self.config.get_dbname().or(self.config.get_user()).unwrap_or_default();
        match self.config.get_ports().first() {
            Some(port) if *port != 5432 => format!("{host}:{port}/{database}"),
            _ => format!("{host}/{database}"),
        }
    }
}

/// Options about TLS, as an address and libpq's variables have them.
struct TlsOptions {
    /// Value of `sslmode`.
    mode: Option<String>,
    /// Value of `sslrootcert`.
    authorities: Option<String>,
    /// Value of `sslcert`.
    certificate: Option<String>,
    /// Value of `sslkey`.
    key: Option<String>,
    /// Whether the address itself asks for no proof, whatever authorities are named.
    is_unproven: bool,
}

impl TlsOptions {
    /// Takes the options out of an address, and returns the rest of it with them. Those that it lacks come
    /// from variables.
    fn take(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<(String, Self)> {
        let names = ["sslmode", "sslrootcert", "sslcert", "sslkey", "ssl"];
        let (text, [mode, authorities, certificate, key, ssl]) = take_options(text, names)?;
        let mode = mode.or_else(|| ssl.map(mode_of_ssl));
        let options = Self {
            is_unproven: mode.as_deref() == Some("no-verify"),
            mode: mode.or_else(|| variable("PGSSLMODE")),
            authorities: authorities.or_else(|| variable("PGSSLROOTCERT")),
            certificate: certificate.or_else(|| variable("PGSSLCERT")),
            key: key.or_else(|| variable("PGSSLKEY")),
        };
        Ok((text, options))
    }

    /// Returns whether connections are encrypted, and how far the server has to prove who it is.
    fn mode_and_proof(&self, roots_file: Option<&Path>) -> Result<(SslMode, Verify)> {
        let (mode, mut verify) = match self.mode.as_deref().or(roots_file.map(|_| "verify-full")) {
            None | Some("prefer" | "allow") => (SslMode::Prefer, Verify::Not),
            Some("disable") => (SslMode::Disable, Verify::Not),
            Some("require" | "no-verify") => (SslMode::Require, Verify::Not),
            Some("verify-ca" | "verify-full") => (SslMode::Require, Verify::Full),
            Some(other) => {
                let expected = "disable, prefer, require, verify-ca or verify-full";
                return Err(Error::option("sslmode", other, expected));
            }
        };
        if self.authorities.is_some() && mode == SslMode::Require && !self.is_unproven {
            verify = Verify::Full;
        }
        if let Some(file) = roots_file {
            if mode != SslMode::Require || self.is_unproven {
                let expected = "left out, or an address with sslmode=verify-full: this one asks the server for no proof of who it is";
                return Err(Error::option(ROOT_CERTIFICATES, file.display(), expected));
            }
            verify = Verify::Full;
        }
        Ok((mode, verify))
    }

    /// Returns the files of the client's certificate and of its key; `None` where it has neither.
    fn client_files(&self) -> Result<Option<(&str, &str)>> {
        match (self.certificate.as_deref(), self.key.as_deref()) {
            (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
            (None, None) => Ok(None),
            (Some(_), None) => Err(Error::missing("sslkey", "sslcert")),
            (None, Some(_)) => Err(Error::missing("sslcert", "sslkey")),
        }
    }
}

/// Makes a connection notice a server that is gone without a word, within half a minute: the default of two
/// hours is longer than any lease. What the address says of it stays.
fn notice_silence(config: &mut Config) {
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(Duration::from_secs(10));
    }
    if config.get_keepalives_idle() >= Duration::from_hours(2) {
        config.keepalives_idle(Duration::from_secs(10));
    }
    if config.get_keepalives_interval().is_none() {
        config.keepalives_interval(Duration::from_secs(5));
    }
    if config.get_keepalives_retries().is_none() {
        config.keepalives_retries(3);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(Duration::from_secs(30));
    }
}

/// Fills in what an address leaves out, from libpq's variables and its file of passwords.
fn fill_in(config: &mut Config, port: Option<u16>, variable: &dyn Fn(&str) -> Option<String>) {
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        config.host(variable("PGHOST").unwrap_or_else(|| "localhost".into()));
    }
    if let Some(port) = port.filter(|_| config.get_ports().is_empty()) {
        config.port(port);
    }
    if config.get_dbname().is_none()
        && let Some(database) = variable("PGDATABASE")
    {
        config.dbname(database);
    }
    if config.get_application_name().is_none() {
        config.application_name("rehang");
    }
    if config.get_user().is_none()
        && let Some(user) = variable("PGUSER").or_else(|| variable("USER"))
    {
        config.user(user);
    }
    if config.get_password().is_none_or(<[u8]>::is_empty)
        && let Some(password) = variable("PGPASSWORD").or_else(|| from_password_file(config, variable))
    {
        config.password(password);
    }
}

/// Options that the parser of an address knows.
const OF_PARSER: [&str; 18] = [
    "user",
    "password",
    "dbname",
    "options",
    "application_name",
    "sslnegotiation",
    "host",
    "hostaddr",
    "port",
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "target_session_attrs",
    "channel_binding",
    "load_balance_hosts",
];

/// Options that say how an application's own driver, pool or ORM works, in small letters. They ask
/// nothing of a connection.
const OF_OTHERS: [&str; 38] = [
    // Prisma.
    "pgbouncer",
    "connection_limit",
    "pool_timeout",
    "socket_timeout",
    "statement_cache_size",
    // node-postgres, and what Supabase's pooler adds for it.
    "uselibpqcompat",
    "supa",
    "workaround",
    "idle_in_transaction_session_timeout",
    "max",
    // SQLAlchemy, asyncpg, Django.
    "prepared_statement_cache_size",
    "prepared_statement_name_func",
    "async_fallback",
    "command_timeout",
    "pool_size",
    "max_overflow",
    "pool_recycle",
    "pool_pre_ping",
    "conn_max_age",
    "conn_health_checks",
    // Rails.
    "pool",
    "prepared_statements",
    "encoding",
    // pgx and sqlx.
    "pool_max_conns",
    "pool_min_conns",
    "pool_max_conn_lifetime",
    "pool_max_conn_idle_time",
    "default_query_exec_mode",
    "statement_cache_capacity",
    // JDBC.
    "preparethreshold",
    "rewritebatchedinserts",
    "tcpkeepalive",
    "stringtype",
    "applicationname",
    // libpq: names and manners that change nothing here.
    "client_encoding",
    "fallback_application_name",
    "sslsni",
    "sslcompression",
];

/// Fails for an option that neither libpq nor a known driver has, and for one that would change what is read.
/// The value is never repeated.
fn expect_passed_over(name: &str, value: &str) -> Result<()> {
    let lower = name.to_lowercase();
    let way = match (lower.as_str(), value) {
        ("schema" | "currentschema" | "search_path", "public")
        | ("gssencmode", "disable" | "prefer" | "allow") => return Ok(()),
        ("schema" | "currentschema" | "search_path", _) => {
            "an address without it, and the table as SCHEMA.TABLE: it is read by the application's own driver alone"
        }
        ("gssencmode", _) => "gssencmode=disable: connections are encrypted by TLS alone (sslmode)",
        (other, _) if OF_OTHERS.contains(&other) => return Ok(()),
        _ => "an address without it: neither libpq's options that are known here nor those of an ORM have it",
    };
    // A text that is no name may be a piece of a password.
    let is_name =
        name.len() <= 40 && name.bytes().all(|letter| letter.is_ascii_alphanumeric() || letter == b'_');
    Err(Error::option("the address of the server", if is_name { name } else { "an option" }, way))
}

/// Translates `ssl` into an `sslmode`, as node-postgres and JDBC read it: true asks for a
/// proof of who the server is.
fn mode_of_ssl(ssl: String) -> String {
    match ssl.as_str() {
        "" | "true" | "1" => "verify-full".into(),
        "false" | "0" => "disable".into(),
        _ => ssl,
    }
}

/// Rewrites an address for an application's own driver as libpq reads it: without quotes around it, without
/// `jdbc:` and without the name of a driver behind `postgresql`.
fn as_libpq(text: &str) -> Result<String> {
    let mut text = text.trim();
    for quote in ['"', '\''] {
        let inner = text.strip_prefix(quote).and_then(|text| text.strip_suffix(quote));
        text = inner.unwrap_or(text).trim();
    }
    text = text.strip_prefix("jdbc:").unwrap_or(text);
    let is_word =
        |word: &str| word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-._".contains(&byte));
    let Some((scheme, address)) = text.split_once("://").filter(|(scheme, _)| is_word(scheme)) else {
        return Ok(text.to_owned());
    };
    match scheme.split('+').next().unwrap_or_default() {
        "postgres" | "postgresql" | "postgis" => Ok(format!("postgresql://{address}")),
        _ => {
            let expected = "postgresql://USER@HOST:PORT/DATABASE";
            Err(Error::option("the address of the server", format!("{scheme}://…"), expected))
        }
    }
}

/// Takes options out of an address that its parser does not know or reads differently, and leaves out options
/// that only other drivers read.
fn take_options<const N: usize>(text: &str, names: [&str; N]) -> Result<(String, [Option<String>; N])> {
    let mut values = [const { None }; N];
    let mut take = |name: &str, value: String| {
        if let Some(at) = names.iter().position(|option| *option == name) {
            values[at] = Some(value);
        }
    };
    if !text.starts_with("postgres://") && !text.starts_with("postgresql://") {
        let mut parser_pairs = Vec::new();
        let mut text_left = text.trim_start();
        while let Some((name, value, after)) = pair(text_left) {
            let written = text_left[..text_left.len() - after.len()].trim_end();
            if OF_PARSER.contains(&name) {
                parser_pairs.push(written);
            } else if names.contains(&name) {
                take(name, value);
            } else {
                expect_passed_over(name, &value)?;
            }
            text_left = after.trim_start();
        }
        // The parser refuses a rest that is no pair.
        parser_pairs.extend(Some(text_left).filter(|text_left| !text_left.is_empty()));
        return Ok((parser_pairs.join(" "), values));
    }
    let (address, query) = text.split_once('?').unwrap_or((text, ""));
    let mut parser_pairs = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if OF_PARSER.contains(&name) {
            parser_pairs.push(pair);
            continue;
        }
        if !names.contains(&name) {
            expect_passed_over(name, value)?;
            continue;
        }
        let value = decoded(value).ok_or_else(|| {
            Error::option(
                format!("{name} of the address"),
                value,
                "a value in which % begins two hexadecimal digits",
            )
        })?;
        take(name, value);
    }
    let query = if parser_pairs.is_empty() { String::new() } else { format!("?{}", parser_pairs.join("&")) };
    Ok((format!("{address}{query}"), values))
}

/// Splits off the first pair of `name = value …` and returns it with what comes after it. A value in single
/// quotes may hold spaces, and a backslash makes the next letter part of a value, as libpq has it.
fn pair(text: &str) -> Option<(&str, String, &str)> {
    let (name, after) = text.split_once('=')?;
    let name = name.trim();
    if name.is_empty() || name.contains([' ', '\t', '\n']) {
        return None;
    }
    let after = after.trim_start();
    let quoted = after.strip_prefix('\'');
    let body = quoted.unwrap_or(after);
    let mut value = String::new();
    let mut letters = body.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => value.push(letters.next()?.1),
            '\'' if quoted.is_some() => return Some((name, value, &body[at + 1..])),
            letter if quoted.is_none() && letter.is_whitespace() => return Some((name, value, &body[at..])),
            letter => value.push(letter),
        }
    }
    quoted.is_none().then_some((name, value, ""))
}

/// Decodes a value of an address, in which `%` begins two hexadecimal digits.
fn decoded(value: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut parts = value.split('%');
    bytes.extend_from_slice(parts.next()?.as_bytes());
    for part in parts {
        let digits = part.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

/// Gives a port to every host that an address `postgresql://…` names without one: its parser would
/// give each the usual port.
fn with_port(text: &str, port: u16) -> String {
    let parts = text.split_once("://").filter(|(scheme, _)| ["postgres", "postgresql"].contains(scheme));
    let Some((scheme, address)) = parts else { return text.to_owned() };
    let (authority, tail) = address.split_at(address.find(['/', '?']).unwrap_or(address.len()));
    let hosts_at = authority.rfind('@').map_or(0, |at| at + 1);
    let (login, hosts) = authority.split_at(hosts_at);
    if hosts.is_empty() {
        return text.to_owned();
    }
    // Inside brackets, a colon is part of an address of IP version 6.
    let has_port = |host: &str| host.rsplit(']').next().is_some_and(|end| end.contains(':'));
    let hosts: Vec<String> = hosts
        .split(',')
        .map(|host| if has_port(host) { host.to_owned() } else { format!("{host}:{port}") })
        .collect();
    format!("{scheme}://{login}{}{tail}", hosts.join(","))
}

/// Whether the first `@` of an address may be part of a password. Its parser would take the rest of the
/// password for a host, which is shown.
fn is_cut_short(text: &str) -> bool {
    let Some(address) = text.strip_prefix("postgresql://").or_else(|| text.strip_prefix("postgres://"))
    else {
        return false;
    };
    let (front, query) = address.split_once('?').unwrap_or((address, ""));
    match front.matches('@').count() {
        0 => query.contains('@') && (front.contains('/') || query.contains('=')),
        count => count > 1,
    }
}

/// Reads the password from libpq's file, which has lines of `host:port:database:user:password`
/// with `*` for anything.
fn from_password_file(config: &Config, variable: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let path = variable("PGPASSFILE")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(variable("HOME")?).join(".pgpass")))?;
    let text = fs_err::read_to_string(path).ok()?;
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(host)) => host.clone(),
        _ => "localhost".into(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432).to_string();
    let user = config.get_user().unwrap_or_default();
    password_of(&text, [&host, &port, config.get_dbname().unwrap_or(user), user])
}

/// Finds the password in the first line that fits. A backslash makes a colon or a backslash part of a field.
fn password_of(text: &str, wanted: [&str; 4]) -> Option<String> {
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let mut fields = vec![String::new()];
        let mut letters = line.chars();
        while let Some(letter) = letters.next() {
            match letter {
                '\\' => fields.last_mut()?.extend(letters.next()),
                ':' if fields.len() < 5 => fields.push(String::new()),
                _ => fields.last_mut()?.push(letter),
            }
        }
        let fits = fields.iter().zip(wanted).all(|(field, wanted)| field == "*" || field == wanted);
        (fields.len() == 5 && fits).then(|| fields.swap_remove(4))
    })
}

/// Loads the authorities by which a server has to prove who it is: those of `sslrootcert` alone where it
/// names a file, as in libpq, and the file of the configuration.
fn trusted_roots(
    authorities: Option<&str>,
    roots_file: Option<&Path>,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Roots> {
    let own_roots = OwnRoots { key: ROOT_CERTIFICATES, file: roots_file };
    match authorities {
        None | Some("system") => Roots::load(Some(&own_roots), variable),
        Some(path) => Roots::from_file("sslrootcert", Path::new(path), Some(&own_roots)),
    }
}

/// Configures TLS: with the authorities by which the server has to prove who it is, if any, and the files of
/// the client's certificate and of its key.
fn client_config(roots: Option<&Roots>, client_files: Option<(&str, &str)>) -> Result<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::corrupt("the TLS library", error))?;
    let builder = match roots {
        None => builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer(provider))),
        Some(roots) => builder.with_root_certificates(roots.store().clone()),
    };
    let Some((certificate, key)) = client_files else { return Ok(builder.with_no_client_auth()) };
    let secret =
        PrivateKeyDer::from_pem_file(key).map_err(|error| Error::corrupt(key, format!("sslkey: {error}")))?;
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(|error| Error::corrupt(certificate, format!("sslcert: {error}")))?;
    builder
        .with_client_auth_cert(chain, secret)
        .map_err(|error| Error::corrupt(certificate, format!("sslcert: {error}")))
}

/// Verifier that takes any server for the one that was meant, as libpq does where it is not told to verify:
/// traffic is encrypted, and nothing else is checked.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
#[path = "../../rehang-connect/tests/tls/mod.rs"]
mod tls;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Database;

    #[test]
    fn passwords_come_from_the_first_line_that_fits() {
        let text = "# a comment\nother:5432:*:*:no\nhost:5432:db:me:a\\:b\\\\c\n*:*:*:*:any";
        assert_eq!(password_of(text, ["host", "5432", "db", "me"]).as_deref(), Some("a:b\\c"));
        assert_eq!(password_of(text, ["host", "5433", "db", "me"]).as_deref(), Some("any"));
        assert_eq!(password_of("short:line", ["short", "line", "", ""]), None);
    }

    #[test]
    fn what_an_address_leaves_out_comes_from_the_variables_of_libpq() {
        let parsed = |text: &str| {
            Address::parse_with(text, None, &|name| {
                let set =
                    [("PGHOST", "db.example"), ("PGPORT", "6432"), ("PGDATABASE", "shop"), ("PGUSER", "me")];
                set.into_iter().find(|(variable, _)| *variable == name).map(|(_, value)| value.to_owned())
            })
            .unwrap()
        };
        assert_eq!(parsed("").shown(), "db.example:6432/shop");
        assert_eq!(parsed("user=you").shown(), "db.example:6432/shop");
        assert_eq!(parsed("postgresql://other/else").shown(), "other:6432/else");
        assert_eq!(parsed("postgresql://other:7000/else").shown(), "other:7000/else");
        assert_eq!(parsed("postgresql://you@other?connect_timeout=3").shown(), "other:6432/shop");
        assert_eq!(parsed("postgresql:///else").shown(), "db.example:6432/else");
        assert_eq!(
            with_port("postgresql://a@[::1],b:1,[::2]:3/x", 9),
            "postgresql://a@[::1]:9,b:1,[::2]:3/x"
        );
        assert_eq!(with_port("host=b password=a://b", 9), "host=b password=a://b");
        let error = Address::parse_with("host=a", None, &|name| (name == "PGPORT").then(|| "many".into()))
            .err()
            .unwrap();
        assert!(error.to_string().contains("PGPORT"), "{error}");
    }

    #[test]
    fn values_in_quotes_stay_whole() {
        let names = ["sslmode", "sslrootcert"];
        let taken = |text: &str| take_options(text, names).unwrap();
        let (address, values) = taken(
            r"host=db password='a  b\'c' sslmode = 'require' sslrootcert='/my roots/it\'s.pem' user=me\ too",
        );
        assert_eq!(address, r"host=db password='a  b\'c' user=me\ too");
        assert_eq!(values, [Some("require".into()), Some("/my roots/it's.pem".into())]);
        let config = Config::from_str(&address).unwrap();
        assert_eq!((config.get_password(), config.get_user()), (Some(&b"a  b'c"[..]), Some("me too")));
        let (address, values) =
            taken("postgresql://db/shop?sslrootcert=%2Fmy%20roots%2Fa.pem&connect_timeout=3");
        assert_eq!(
            (address.as_str(), values),
            ("postgresql://db/shop?connect_timeout=3", [None, Some("/my roots/a.pem".into())])
        );
        assert!(take_options("postgresql://db/shop?sslrootcert=%2", names).is_err());
    }

    #[test]
    fn addresses_of_other_drivers_are_read_and_what_is_unknown_is_named() {
        let plain = "postgresql://me:secret@db:6000/shop";
        let parsed = |text: &str| Address::parse_with(text, None, &|_| None);
        for address in [
            format!("{plain}?schema=public"),
            format!("{plain}?pgbouncer=true&connection_limit=1&pool_timeout=0"),
            format!("{plain}?gssencmode=disable&sslmode=prefer"),
            format!("{plain}?uselibpqcompat=true&sslmode=require&application_name=shop"),
            format!("jdbc:{plain}?currentSchema=public&prepareThreshold=0&ApplicationName=shop"),
            format!(" \"{plain}\"\n"),
            format!("'{plain}'"),
            plain.replace("postgresql", "postgresql+psycopg"),
            plain.replace("postgresql", "postgres+asyncpg"),
            plain.replace("postgresql", "postgis"),
            "host=db port=6000 dbname=shop user=me password='se cret' client_encoding=utf8 pool_size=5"
                .into(),
        ] {
            let address = parsed(&address).unwrap_or_else(|error| panic!("{address}: {error}"));
            assert_eq!(address.shown(), "db:6000/shop");
            assert_eq!(address.config.get_user(), Some("me"));
        }
        for (option, mode) in [
            ("ssl=true", SslMode::Require),
            ("ssl=false", SslMode::Disable),
            ("ssl=require", SslMode::Require),
            ("ssl=true&sslmode=disable", SslMode::Disable),
            ("sslmode=no-verify", SslMode::Require),
        ] {
            let address = parsed(&format!("{plain}?{option}")).unwrap();
            assert_eq!(address.config.get_ssl_mode(), mode, "{option}");
        }
        for (address, named) in [
            (format!("{plain}?schema=shop"), "schema"),
            (format!("{plain}?gssencmode=require"), "gssencmode"),
            (format!("{plain}?require_auth=secret"), "require_auth"),
            ("host=db service=secret".into(), "service"),
            (format!("{plain}?ssl=secret2"), "sslmode"),
            (plain.replace("postgresql", "mysql"), "mysql://"),
            (plain.replace("postgresql", "mysql+pymysql"), "mysql+pymysql://"),
        ] {
            let error = parsed(&address).err().expect("it is refused").to_string();
            assert!(
                error.contains(named) && !error.contains("secret@") && !error.contains("=secret"),
                "{error}"
            );
        }
    }

    #[test]
    fn authorities_of_the_configuration_ask_for_a_proof() {
        let folder = tempfile::tempdir().unwrap();
        let file = tls::authority(folder.path());
        let parsed = |text: &str, roots| Address::parse_with(text, roots, &|_| None);
        for address in [
            "postgresql://db/shop",
            "postgresql://db/shop?sslmode=require",
            "postgresql://db/shop?sslmode=verify-full&sslrootcert=system",
            "host=db sslmode=verify-ca",
        ] {
            let address = parsed(address, Some(&file)).unwrap();
            assert_eq!(address.config.get_ssl_mode(), SslMode::Require);
            let trusted = address.trusted();
            assert!(trusted.contains("the system") && trusted.contains("authority.pem"), "{trusted}");
        }
        let alone = format!("postgresql://db/shop?sslmode=verify-full&sslrootcert={}", file.display());
        let alone = parsed(&alone, None).unwrap();
        assert!(alone.trusted().starts_with("those of sslrootcert"), "{}", alone.trusted());
        assert_eq!(parsed("postgresql://db/shop", None).unwrap().config.get_ssl_mode(), SslMode::Prefer);
        for mode in ["disable", "prefer", "no-verify"] {
            let error = parsed(&format!("postgresql://db/shop?sslmode={mode}"), Some(&file)).err().unwrap();
            assert!(error.to_string().contains(ROOT_CERTIFICATES), "{mode}: {error}");
        }
        let error =
            parsed("postgresql://db/shop", Some(Path::new("/nowhere.pem"))).err().unwrap().to_string();
        assert!(error.contains(ROOT_CERTIFICATES) && error.contains("/nowhere.pem"), "{error}");
    }

    #[test]
    fn a_server_that_proves_nothing_is_left_at_once() {
        use std::io::{Read, Write};
        let server = tls::TlsServer::start(|mut stream| {
            // The client asks for TLS, and the server says that there is some.
            stream.read_exact(&mut [0; 8])?;
            stream.write_all(b"S")?;
            let mut stream = tls::secure(stream)?;
            stream.read_exact(&mut [0; 4])?;
            stream.write_all(b"E\0\0\0\x17SFATAL\0C28P01\0Mno\0\0")
        });
        let folder = tempfile::tempdir().unwrap();
        let file = tls::authority(folder.path());
        let address = format!("postgresql://me:word@localhost:{}/shop", server.port);
        let open = |address: &str, roots| Database::open(address, roots).expect_err("there is no database");
        let error = open(&format!("{address}?sslmode=verify-full"), None);
        let message = error.to_string();
        for words in
            ["the certificate of PostgreSQL at localhost", "not trusted", ROOT_CERTIFICATES, "sslrootcert"]
        {
            assert!(message.contains(words), "{message}");
        }
        assert!(error.is_conflict(), "{error:?}");
        assert_eq!(server.connections(), 1);
        let error = open(&address, Some(&file));
        assert!(error.is_unauthorised(), "the password was asked for: {error:?}");
        let error = open(&format!("{address}?sslmode=verify-full&sslrootcert={}", file.display()), None);
        assert!(error.is_unauthorised(), "the password was asked for: {error:?}");
    }

    #[test]
    fn an_address_is_shown_without_its_password() {
        let address = Address::parse(
            "postgresql://me:secret@db.example:6000/shop?sslmode=verify-full&connect_timeout=3",
            None,
        )
        .unwrap();
        assert_eq!(address.shown(), "db.example:6000/shop");
        assert_eq!(
            Address::parse("host=db.example dbname=shop sslmode=disable", None).unwrap().shown(),
            "db.example/shop"
        );
        let address =
            Address::parse("postgresql://me%40corp:se%40cret@db/shop?application_name=a@b", None).unwrap();
        assert_eq!(address.shown(), "db/shop");
        for bad in [
            "postgresql://me:secret@db/shop?sslmode=maybe",
            "postgresql://me:secret@db:port/shop",
            "secret",
            "postgresql://me:p@secret@db/shop",
            "postgresql://me:p@secret/secret@db/shop",
            "postgresql:///shop?host=db&user=me&password=p@secret",
            "postgresql://db?user=me&password=p@secret",
        ] {
            let error = Address::parse(bad, None).err().expect("it is no address").to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
