//! A host and a port, read from an address.

use std::net::IpAddr;

/// The machine that an address leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Machine {
    /// Name or number of the machine, in small letters, without brackets and without a dot at its end.
    pub host: String,
    /// The port, or the usual one of the scheme.
    pub port: u16,
    /// Whether the address begins with `https://`.
    pub is_tls: bool,
}

impl Machine {
    /// Reads the machine from an address that begins with `http://` or `https://`; `None` for any other.
    ///
    /// ```
    /// use rehang_connect::Machine;
    ///
    /// let machine = Machine::from_url("https://Qdrant.corp.example/collections").unwrap();
    /// assert_eq!((machine.host.as_str(), machine.port, machine.is_tls), ("qdrant.corp.example", 443, true));
    /// ```
    pub fn from_url(url: &str) -> Option<Self> {
        let (scheme, after_scheme) = url.split_once("://")?;
        let is_tls = scheme.eq_ignore_ascii_case("https");
        if !is_tls && !scheme.eq_ignore_ascii_case("http") {
            return None;
        }
        let authority = after_scheme.split(['/', '?', '#']).next()?;
        let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let (host, port) = split_port(authority);
        let port = port.unwrap_or(if is_tls { 443 } else { 80 });
        (!host.is_empty()).then(|| Self { host: plain(host), port, is_tls })
    }

    /// Whether the machine is this one: `localhost` or a loopback address.
    pub fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

/// Whether an address leads to this machine. No proxy and no eavesdropper stands before it.
pub fn is_loopback(url: &str) -> bool {
    Machine::from_url(url).is_some_and(|machine| machine.is_loopback())
}

/// Splits `host:port` or `[address]:port` into the host and, where there is one, the port.
pub(crate) fn split_port(authority: &str) -> (&str, Option<u16>) {
    let Some((host, port)) = authority.rsplit_once(':') else { return (authority, None) };
    // Several colons without brackets are an address of version 6.
    let is_whole = host.contains(':') && !host.ends_with(']');
    match port.parse() {
        Ok(port) if !is_whole => (host, Some(port)),
        _ => (authority, None),
    }
}

/// Normalises a host for comparison: small letters, no brackets, no dot at the end.
pub(crate) fn plain(host: &str) -> String {
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_known_by_all_of_its_names() {
        for url in [
            "http://localhost",
            "http://LOCALHOST:8080/v1",
            "https://127.0.0.1:1",
            "http://127.8.9.1",
            "http://[::1]:6333/x",
        ] {
            assert!(is_loopback(url), "{url}");
        }
        for url in [
            "http://localhost.example",
            "http://127.0.0.1.example",
            "http://10.0.0.1",
            "http://[fd00::1]:6333",
            "localhost",
            "http://",
        ] {
            assert!(!is_loopback(url), "{url}");
        }
    }

    #[test]
    fn a_port_is_told_from_a_piece_of_an_address() {
        let host_and_port = |url| Machine::from_url(url).map(|machine| (machine.host, machine.port));
        assert_eq!(host_and_port("http://me:word@host.example.:81/a:b"), Some(("host.example".into(), 81)));
        assert_eq!(host_and_port("https://[FD00::1]"), Some(("fd00::1".into(), 443)));
        assert_eq!(host_and_port("http://[fd00::1]:82?x"), Some(("fd00::1".into(), 82)));
        assert_eq!(host_and_port("ftp://host"), None);
        assert_eq!(split_port("fd00::1"), ("fd00::1", None));
    }
}
