//! Proxies that the environment names, and which of them stands before a machine.

use std::fmt;
use std::net::IpAddr;

use rehang_core::{Error, ErrorKind, Result};

use crate::machine::{Machine, plain, split_port};

/// Schemes of proxies that rehang can speak to.
const SCHEMES: [&str; 7] = ["http", "https", "socks4", "socks4a", "socks5", "socks5h", "socks"];

/// Proxies that the environment names, and the machines that none stands before. Each variable is looked up
/// in capital letters, then in small ones.
///
/// ```
/// use rehang_connect::{Machine, Proxies};
///
/// let set = [("https_proxy", "http://me:word@proxy:3128"), ("NO_PROXY", "10.0.0.0/8, .corp.example")];
/// let proxies = Proxies::from_environment(&|name| Some(set.iter().find(|(known, _)| *known == name)?.1.to_owned()))?;
/// let before = |url| proxies.before(&Machine::from_url(url).unwrap()).map(ToString::to_string);
/// assert_eq!(before("https://api.example"), Some("the proxy http://proxy:3128 (https_proxy)".into()));
/// assert_eq!(before("https://embed.corp.example"), None);
/// assert_eq!(before("https://10.1.2.3"), None);
/// # Ok::<(), rehang_core::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Proxies {
    http: Option<Proxy>,
    https: Option<Proxy>,
    all: Option<Proxy>,
    exceptions: Vec<Exception>,
}

/// A proxy of the environment. It is displayed without its name and password.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    address: String,
    variable: String,
}

impl Proxies {
    /// Reads `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`.
    ///
    /// # Errors
    ///
    /// An invalid option for a proxy whose address cannot be one. The address is not repeated, since it may
    /// hold a password.
    pub fn from_environment(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let setting_of = |name: &str| {
            let names = [name.to_owned(), name.to_ascii_lowercase()];
            names.into_iter().find_map(|name| {
                let value = variable(&name)?.trim().to_owned();
                (!value.is_empty()).then_some((name, value))
            })
        };
        let proxy =
            |name: &str| setting_of(name).map(|(variable, value)| Proxy::parse(variable, &value)).transpose();
        Ok(Self {
            http: proxy("HTTP_PROXY")?,
            https: proxy("HTTPS_PROXY")?,
            all: proxy("ALL_PROXY")?,
            exceptions: setting_of("NO_PROXY").map(|(_, list)| exceptions(&list)).unwrap_or_default(),
        })
    }

    /// Returns the proxy that requests to a machine go through. This machine has none, nor have those that
    /// `NO_PROXY` names.
    pub fn before(&self, machine: &Machine) -> Option<&Proxy> {
        let proxy = if machine.is_tls { &self.https } else { &self.http };
        let proxy = proxy.as_ref().or(self.all.as_ref())?;
        let is_free =
            machine.is_loopback() || self.exceptions.iter().any(|exception| exception.holds(machine));
        (!is_free).then_some(proxy)
    }

    /// Every proxy that the environment names.
    pub fn all(&self) -> impl Iterator<Item = &Proxy> {
        [&self.http, &self.https, &self.all].into_iter().flatten()
    }
}

impl Proxy {
    fn parse(variable: String, value: &str) -> Result<Self> {
        let address = if value.contains("://") { value.to_owned() } else { format!("http://{value}") };
        let (scheme, after_scheme) = address.split_once("://").unwrap_or_default();
        let authority = after_scheme.split(['/', '?', '#']).next().unwrap_or_default();
        let (host, _) = split_port(authority.rsplit_once('@').map_or(authority, |(_, host)| host));
        let is_word = !host.is_empty()
            && !address.contains(|letter: char| letter.is_whitespace() || letter.is_control());
        if SCHEMES.iter().any(|known_scheme| scheme.eq_ignore_ascii_case(known_scheme)) && is_word {
            return Ok(Self { address, variable });
        }
        let expected =
            "the address of a proxy, such as http://proxy.corp.example:3128 or socks5h://127.0.0.1:1080";
        Err(Error::option(format!("the variable {variable}"), "(not shown)", expected))
    }

    /// Address of the proxy as the environment has it, with name and password. Never printed.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Whether the proxy itself is spoken to over TLS.
    pub fn is_tls(&self) -> bool {
        self.address.to_ascii_lowercase().starts_with("https:")
    }

    /// Makes the error for a proxy that cannot be reached, or that says nothing.
    pub fn is_down(&self, host: &str, why: impl fmt::Display) -> Error {
        let detail =
            format!("{why}; requests to {host} go through it unless the variable NO_PROXY names that host");
        ErrorKind::Unavailable { service: self.to_string(), detail }.into()
    }

    /// Makes the error for a proxy that wants a name and a password (status 407), or refuses the given ones.
    pub fn wants_password(&self) -> Error {
        let (scheme, authority) = self.address.split_once("://").unwrap_or_default();
        let detail = match authority.split_once('@') {
            Some(_) => format!("status 407: it does not take the name and the password of {}", self.variable),
            None => format!(
                "status 407: it wants a name and a password, which belong into the variable: {} = {scheme}://NAME:PASSWORD@{authority}",
                self.variable
            ),
        };
        ErrorKind::Unauthorised { service: self.to_string(), detail }.into()
    }

    /// Makes the error for a proxy that lets nothing through to a host.
    pub fn refuses(&self, host: &str, reason: impl fmt::Display) -> Error {
        let way = format!(
            "it lets nothing through to {host} ({reason}); the variable NO_PROXY = {host} goes past it"
        );
        Error::conflict(self, way)
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, after_scheme) = self.address.split_once("://").unwrap_or_default();
        let authority = after_scheme.split(['/', '?', '#']).next().unwrap_or_default();
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        write!(f, "the proxy {scheme}://{host} ({})", self.variable)
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An entry of `NO_PROXY`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Exception {
    hosts: Hosts,
    /// The only port that the entry is about, if it names one.
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Hosts {
    All,
    /// Addresses that agree with this one in so many first bits.
    Block(IpAddr, u32),
    /// A host by its name, and all hosts whose names end in a dot and this name.
    Name(String),
}

/// Reads a list of entries, separated by commas or spaces. Entries that cannot be a host are passed over.
fn exceptions(list: &str) -> Vec<Exception> {
    let entry = |text: &str| {
        if text == "*" {
            return Some(Exception { hosts: Hosts::All, port: None });
        }
        if let Some((address, bits)) = text.split_once('/') {
            let address: IpAddr = plain(address).parse().ok()?;
            let bits = bits.parse().ok().filter(|bits| *bits <= length(&address))?;
            return Some(Exception { hosts: Hosts::Block(address, bits), port: None });
        }
        let (host, port) = split_port(text);
        let host = plain(host);
        if let Ok(address) = host.parse::<IpAddr>() {
            return Some(Exception { hosts: Hosts::Block(address, length(&address)), port });
        }
        let name = host.strip_prefix('*').unwrap_or(&host).trim_start_matches('.').to_owned();
        (!name.is_empty()).then_some(Exception { hosts: Hosts::Name(name), port })
    };
    list.split([',', ' ', '\t', '\n', ';']).filter(|text| !text.is_empty()).filter_map(entry).collect()
}

impl Exception {
    fn holds(&self, machine: &Machine) -> bool {
        let is_host = match &self.hosts {
            Hosts::All => true,
            Hosts::Block(block, bits) => {
                let address = machine.host.parse::<IpAddr>();
                address.is_ok_and(|address| first_bits(&address, *bits) == first_bits(block, *bits))
            }
            Hosts::Name(name) => {
                let before = machine.host.strip_suffix(name.as_str());
                before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
            }
        };
        is_host && self.port.is_none_or(|port| port == machine.port)
    }
}

/// Number of bits in an address.
fn length(address: &IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The first bits of an address, beside its length, so that addresses of two lengths are never equal.
fn first_bits(address: &IpAddr, bits: u32) -> (u32, u128) {
    let number = match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    };
    let length = length(address);
    (length, number.checked_shr(length.saturating_sub(bits)).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn proxies(set: &[(&str, &str)]) -> Result<Proxies> {
        Proxies::from_environment(&|name| {
            set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    fn before(set: &[(&str, &str)], url: &str) -> Option<String> {
        proxies(set).unwrap().before(&Machine::from_url(url).unwrap()).map(ToString::to_string)
    }

    #[test]
    fn the_scheme_of_the_address_chooses_the_variable() {
        let variables = [("HTTP_PROXY", "one:1"), ("https_proxy", "https://two")];
        assert_eq!(before(&variables, "http://a").as_deref(), Some("the proxy http://one:1 (HTTP_PROXY)"));
        assert_eq!(before(&variables, "https://a").as_deref(), Some("the proxy https://two (https_proxy)"));
        assert_eq!(before(&variables[..1], "https://a"), None);
        let all = [("all_proxy", "socks5h://three:3"), ("HTTP_PROXY", "one"), ("http_proxy", "small")];
        assert_eq!(before(&all, "https://a").as_deref(), Some("the proxy socks5h://three:3 (all_proxy)"));
        assert_eq!(before(&all, "http://a").as_deref(), Some("the proxy http://one (HTTP_PROXY)"));
        for none in ["", "  "] {
            assert_eq!(before(&[("HTTP_PROXY", none)], "http://a"), None);
        }
        for this in ["http://127.0.0.1:8080", "https://localhost", "http://[::1]"] {
            assert_eq!(before(&[("ALL_PROXY", "one")], this), None, "{this}");
        }
    }

    #[test]
    fn exceptions_are_names_suffixes_addresses_blocks_and_ports() {
        for (list, free, behind) in [
            ("*", &["http://any", "http://10.0.0.1"][..], &[][..]),
            (
                "other, .corp.example",
                &[
                    "http://embed.corp.example",
                    "http://a.b.Corp.Example.",
                    "http://corp.example",
                    "http://other",
                ],
                &["http://notcorp.example", "http://corp.example.evil", "http://another"],
            ),
            (
                "corp.example",
                &["http://corp.example", "https://embed.corp.example:8443"],
                &["http://example"],
            ),
            ("*.corp.example", &["http://embed.corp.example"], &["http://scorp.example"]),
            ("a:8080 b", &["http://a:8080", "http://b:1", "http://x.a:8080"], &["http://a", "https://a"]),
            ("a:443", &["https://a"], &["http://a"]),
            (
                "10.0.0.0/8,192.168.1.7",
                &["http://10.255.0.1:6333", "http://192.168.1.7"],
                &["http://11.0.0.1", "http://192.168.1.8", "http://[::1:2]", "http://10.example"],
            ),
            ("fd00::/8, [fe80::1]:80", &["http://[fd12::3]", "http://[fe80::1]"], &["http://[fe80::1]:81"]),
            ("0.0.0.0/0", &["http://9.9.9.9"], &["http://name", "http://[fd00::1]"]),
            (",, ,/8,10.0.0.0/33,10.0.0.0/x,.,*.", &[], &["http://10.0.0.1", "http://a"]),
        ] {
            let set = [("ALL_PROXY", "proxy:1"), ("no_proxy", list)];
            for url in free {
                assert_eq!(before(&set, url), None, "{list:?}: {url}");
            }
            for url in behind {
                assert!(before(&set, url).is_some(), "{list:?}: {url}");
            }
        }
    }

    #[test]
    fn a_proxy_is_named_without_its_password_and_with_its_variable() {
        let set = [("HTTP_PROXY", "http://me:p%40ss:w@proxy.example:3128/")];
        let proxies = proxies(&set).unwrap();
        let proxy = proxies.all().next().unwrap();
        assert!(proxy.address().contains("p%40ss:w"));
        for message in [
            proxy.is_down("host", "refused").to_string(),
            proxy.wants_password().to_string(),
            proxy.refuses("host", "status 403").to_string(),
            format!("{proxies:?}"),
        ] {
            assert!(message.contains("the proxy http://proxy.example:3128 (HTTP_PROXY)"), "{message}");
            assert!(!message.contains("ss:w"), "{message}");
        }
        let bare = Proxy::parse("all_proxy".into(), "proxy:3128").unwrap().wants_password();
        assert!(bare.to_string().contains("all_proxy = http://NAME:PASSWORD@proxy:3128"), "{bare}");
        for bad in
            ["ftp://me:secret@proxy", "http://", "http://me:secret@", "http://me:secret@a b", "http://:1"]
        {
            let message = super::tests::proxies(&[("HTTPS_PROXY", bad)]).unwrap_err().to_string();
            assert!(message.contains("the variable HTTPS_PROXY") && !message.contains("secret"), "{message}");
        }
    }

    proptest! {
        #[test]
        fn nothing_that_an_environment_says_panics(proxy in ".*", list in ".*", url in ".*") {
            if let Ok(proxies) = proxies(&[("ALL_PROXY", &proxy), ("NO_PROXY", &list)])
                && let Some(machine) = Machine::from_url(&format!("http://{url}"))
            {
                drop(proxies.before(&machine).map(|proxy| proxy.is_down("host", "why").to_string()));
            }
        }
    }
}
