//! The HTTP client of encoders and of Qdrant: the authorities it trusts, its proxy, and who is to blame when
//! a request reaches nobody.

use std::io::ErrorKind as Io;
use std::sync::Arc;

use rehang_core::{Error, Result};
use rustls::crypto::ring;
use ureq::config::ConfigBuilder;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::typestate::AgentScope;
use ureq::{Error as Failed, Timeout};

use crate::machine::Machine;
use crate::proxy::{Proxies, Proxy};
use crate::refused::{certificate_error, untrusted};
use crate::roots::{OwnRoots, Roots};

/// Way to a service: the authorities that are trusted, and the proxy before it.
#[derive(Debug)]
pub struct Connection {
    machine: Option<Machine>,
    proxy: Option<Proxy>,
    spoken: Option<ureq::Proxy>,
    roots: Option<Roots>,
    key: String,
}

impl Connection {
    /// Reads what the environment and the configuration say of a service at `url`, and sends it nothing yet.
    /// Authorities are read where TLS is spoken; the file that the configuration names is read in any case.
    ///
    /// # Errors
    ///
    /// An invalid option for a file of certificates that cannot be read or holds none, and for the address of
    /// a proxy that cannot be one.
    pub fn to(
        url: &str,
        own_roots: &OwnRoots<'_>,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self> {
        let machine = Machine::from_url(url);
        let proxies = Proxies::from_environment(variable)?;
        let proxy = machine.as_ref().and_then(|machine| proxies.before(machine)).cloned();
        let spoken = proxy.as_ref().map(|proxy| {
            let expected = "the address of a proxy, such as http://proxy.corp.example:3128";
            let refused = |_| Error::option(proxy, "(not shown)", expected);
            ureq::Proxy::new(proxy.address()).map_err(refused)
        });
        let speaks_tls = machine.as_ref().is_some_and(|machine| machine.is_tls)
            || proxy.as_ref().is_some_and(Proxy::is_tls);
        let roots = (speaks_tls || own_roots.file.is_some()).then(|| Roots::load(Some(own_roots), variable));
        Ok(Self {
            machine,
            proxy,
            spoken: spoken.transpose()?,
            roots: roots.transpose()?,
            key: own_roots.key.to_owned(),
        })
    }

    /// Adds the authorities and the proxy of this connection to the settings of a client.
    pub fn configure(&self, settings: ConfigBuilder<AgentScope>) -> ConfigBuilder<AgentScope> {
        let settings = settings.proxy(self.spoken.clone());
        let Some(roots) = &self.roots else { return settings };
        let certificates =
            roots.certificates().iter().map(|certificate| Certificate::from_der(certificate).to_owned());
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::from(certificates))
            .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()));
        settings.tls_config(tls.build())
    }

    /// Returns the error of a request that would fail at every attempt: the certificate is not trusted, or
    /// the proxy is at fault. `None` where the request may have failed at the service or on the way there.
    pub fn blame(&self, error: &Failed) -> Option<Error> {
        let host = self.machine.as_ref().map_or("the service", |machine| machine.host.as_str());
        let certificate = match error {
            Failed::Io(error) => certificate_error(error),
            Failed::Rustls(error) => certificate_error(error),
            _ => None,
        };
        if let Some(why) = certificate {
            let whose = match &self.proxy {
                Some(proxy) if proxy.is_tls() => format!("{host}, or of {proxy} before it,"),
                Some(proxy) => format!("{host}, seen through {proxy},"),
                None => host.to_owned(),
            };
            let trusted = self.roots.as_ref().map_or("none", Roots::trusted);
            return Some(untrusted(whose, why, trusted, &[&self.key]));
        }
        let proxy = self.proxy.as_ref()?;
        match error {
            Failed::ConnectProxyFailed(words) => match status_in(words) {
                Some(407) => Some(proxy.wants_password()),
                // The proxy has tried: the service is not there, or not now.
                Some(500..=599) => None,
                Some(status) => Some(proxy.refuses(host, format!("status {status}"))),
                None => Some(proxy.is_down(host, words)),
            },
            _ if is_unknown(error) && self.spoken.as_ref().is_some_and(ureq::Proxy::resolve_target) => {
                let why = "the name is looked up on this machine, which does not know it; with socks5h:// the proxy looks it up";
                Some(proxy.is_down(host, why))
            }
            _ if is_unknown(error) => Some(proxy.is_down(host, "no such host")),
            Failed::ConnectionFailed => Some(proxy.is_down(host, "it takes no connection")),
            Failed::Timeout(Timeout::Resolve | Timeout::Connect) => {
                Some(proxy.is_down(host, "no connection came about in time"))
            }
            Failed::Io(error)
                if [Io::ConnectionRefused, Io::HostUnreachable, Io::NetworkUnreachable]
                    .contains(&error.kind()) =>
            {
                Some(proxy.is_down(host, error))
            }
            _ => None,
        }
    }
}

/// Whether an error says that a name was not found.
fn is_unknown(error: &Failed) -> bool {
    match error {
        Failed::HostNotFound => true,
        // The system has no kind of error for this: only its words, and on Windows its number.
        Failed::Io(error) => {
            error.raw_os_error() == Some(11001) || error.to_string().starts_with("failed to lookup address")
        }
        _ => false,
    }
}

/// Reads the status out of what the client says of a proxy that makes no connection: "proxy server responded
/// 407/407".
fn status_in(words: &str) -> Option<u16> {
    words.split(|letter: char| !letter.is_ascii_digit()).find(|word| word.len() == 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_not_found_is_that_of_the_proxy_or_one_that_it_should_look_up() {
        let blamed = |proxy: &str| {
            let variable = |name: &str| (name == "ALL_PROXY").then(|| proxy.to_owned());
            let own_roots = OwnRoots { key: "root_certificates", file: None };
            let connection = Connection::to("http://embed.corp.example", &own_roots, &variable).unwrap();
            let lookup_failure = std::io::Error::other("failed to lookup address information: unknown");
            [Failed::HostNotFound, Failed::Io(lookup_failure)]
                .map(|error| connection.blame(&error).unwrap().to_string())
        };
        for (proxy, words) in [("http://proxy:3128", "no such host"), ("socks5://proxy", "socks5h://")] {
            for message in blamed(proxy) {
                assert!(
                    message.contains(&format!("the proxy {proxy} (ALL_PROXY)")) && message.contains(words),
                    "{message}"
                );
            }
        }
    }
}
