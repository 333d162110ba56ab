//! HTTP clients for object stores. They trust the same certificates and go through the same proxies as all of
//! rehang.

use std::error::Error as StdError;

use futures_util::future::BoxFuture;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};
use object_store::{Certificate, ClientConfigKey, ClientOptions};
use rehang_connect::{Machine, Proxies, Proxy, Roots, certificate_error, untrusted};
use rehang_core::{Error, Result};

/// Addresses of services that a cloud gives to each of its machines; no proxy knows them.
const OF_THE_MACHINE: [&str; 3] = ["169.254.169.254", "169.254.170.2", "metadata.google.internal"];

/// Maker of the HTTP clients of an object store.
#[derive(Debug)]
pub struct Connector {
    roots: Roots,
    proxies: Proxies,
}

impl Connector {
    /// Reads what the environment says of authorities and proxies.
    ///
    /// # Errors
    ///
    /// As [`Roots::load`] and [`Proxies::from_environment`].
    pub fn from_environment(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        Ok(Self { roots: Roots::load(None, variable)?, proxies: Proxies::from_environment(variable)? })
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let mut options = options.clone().with_no_system_certificates(true);
        for certificate in self.roots.certificates() {
            options = options.with_root_certificate(Certificate::from_der(certificate)?);
        }
        // A proxy that is named for this object store alone takes the place of those in the environment.
        let is_named = options.get_config_value(&ClientConfigKey::ProxyUrl).is_some();
        let proxies = if is_named { Proxies::default() } else { self.proxies.clone() };
        let client = |options: ClientOptions| ReqwestConnector::default().connect(&options);
        let through = |proxy: &Proxy| {
            let options = options.clone().with_proxy_url(proxy.address());
            Ok::<_, object_store::Error>((proxy.clone(), client(options)?))
        };
        let proxied = proxies.all().map(through).collect::<Result<_, _>>()?;
        // A client without a proxy of its own would look for one in the environment. The star excludes names;
        // the blocks exclude addresses.
        let direct = if is_named {
            options
        } else {
            options.with_proxy_url("http://localhost").with_proxy_excludes("*,0.0.0.0/0,::/0")
        };
        let trusted = self.roots.trusted().to_owned();
        Ok(HttpClient::new(Service { direct: client(direct)?, proxied, proxies, trusted }))
    }
}

/// One client for each proxy, and one without a proxy.
#[derive(Debug)]
struct Service {
    direct: HttpClient,
    proxied: Vec<(Proxy, HttpClient)>,
    proxies: Proxies,
    trusted: String,
}

impl HttpService for Service {
    fn call<'service, 'call>(
        &'service self,
        request: HttpRequest,
    ) -> BoxFuture<'call, Result<HttpResponse, HttpError>>
    where
        'service: 'call,
        Self: 'call,
    {
        Box::pin(async move {
            let machine = Machine::from_url(&request.uri().to_string());
            let host = machine.as_ref().map_or("", |machine| machine.host.as_str());
            let machine = machine.as_ref().filter(|_| !OF_THE_MACHINE.contains(&host));
            let proxy = machine.and_then(|machine| self.proxies.before(machine));
            let client = self.proxied.iter().find(|(client_proxy, _)| Some(client_proxy) == proxy);
            match client.map_or(&self.direct, |(_, client)| client).execute(request).await {
                Ok(answer) => match proxy.filter(|_| answer.status().as_u16() == 407) {
                    Some(proxy) => Err(not_retryable(proxy.wants_password())),
                    None => Ok(answer),
                },
                Err(error) => Err(self.blame(&error, host, proxy).map_or(error, not_retryable)),
            }
        })
    }
}

impl Service {
    /// Returns the error of a request that would fail at every attempt: the certificate is not trusted, or
    /// the proxy is at fault.
    fn blame(&self, error: &HttpError, host: &str, proxy: Option<&Proxy>) -> Option<Error> {
        if let Some(why) = certificate_error(error) {
            let whose = match proxy {
                Some(proxy) => format!("{host}, seen through {proxy},"),
                None => host.to_owned(),
            };
            return Some(untrusted(whose, why, &self.trusted, &[]));
        }
        let proxy = proxy?;
        let client = error.source()?.downcast_ref::<reqwest::Error>()?;
        if !client.is_connect() {
            return None;
        }
        let mut chain = Vec::new();
        let mut cause: Option<&dyn StdError> = Some(client);
        while let Some(error) = cause {
            chain.push(error.to_string());
            cause = error.source();
        }
        let says = |words: &str| chain.iter().any(|text| text.contains(words));
        if says("proxy authorization required") {
            return Some(proxy.wants_password());
        }
        if says("unsuccessful") {
            return Some(proxy.refuses(host, "it makes no tunnel"));
        }
        let is_down = client.is_timeout() || says("tcp connect error") || says("dns error");
        is_down.then(|| proxy.is_down(host, chain.last().map_or("", String::as_str)))
    }
}

/// Wraps an error that is the same at every attempt, so that no further attempt follows.
fn not_retryable(error: Error) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, error)
}

#[cfg(test)]
#[path = "../../rehang-connect/tests/tls/mod.rs"]
mod tls;

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::path::Path;
    use std::sync::Arc;

    use object_store::aws::AmazonS3Builder;
    use rehang_files::folders::Folder;

    use super::tls::{TlsServer, authority};
    use super::*;
    use crate::ObjectFolder;

    /// Lists a bucket of a server and counts its objects; `set` holds variables of the environment.
    fn list(endpoint: &str, set: &[(&str, &str)]) -> Result<usize> {
        drop(rustls::crypto::ring::default_provider().install_default());
        let variable =
            |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let store = AmazonS3Builder::new()
            .with_endpoint(endpoint)
            .with_allow_http(true)
            .with_access_key_id("key")
            .with_secret_access_key("word")
            .with_url("s3://bucket")
            .with_http_connector(Connector::from_environment(&variable)?)
            .build()
            .unwrap();
        Ok(ObjectFolder::from_store("s3://bucket/old", Arc::new(store))?.list()?.len())
    }

    fn bucket() -> TlsServer {
        TlsServer::http(|_, _| {
            "<ListBucketResult><Contents><Key>old/a.npy</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified><Size>1</Size>\
             </Contents></ListBucketResult>"
                .into()
        })
    }

    #[test]
    fn an_authority_is_trusted_where_it_is_named_and_else_the_first_handshake_is_the_last() {
        let folder = tempfile::tempdir().unwrap();
        let file = authority(folder.path());
        let server = bucket();
        for (name, value) in [("SSL_CERT_FILE", file.as_path()), ("SSL_CERT_DIR", folder.path())] {
            assert_eq!(list(&server.url(), &[(name, value.to_str().unwrap())]), Ok(1), "{name}");
        }
        let before = server.connections();
        let error = list(&server.url(), &[]).unwrap_err();
        let message = error.to_string();
        for words in ["the certificate of localhost", "not trusted", "SSL_CERT_FILE"] {
            assert!(message.contains(words), "{message}");
        }
        assert!(error.is_conflict(), "{error:?}");
        assert_eq!(server.connections(), before + 1, "no attempt more");
        let nowhere = Path::new("/nowhere/a.pem").to_str().unwrap();
        let message = list(&server.url(), &[("SSL_CERT_FILE", nowhere)]).unwrap_err().to_string();
        assert!(message.contains("SSL_CERT_FILE") && message.contains(nowhere), "{message}");
    }

    #[test]
    fn a_proxy_that_is_down_or_wants_a_password_is_blamed_itself() {
        let folder = tempfile::tempdir().unwrap();
        let file = authority(folder.path());
        let (server, file) = (bucket(), file.to_str().unwrap());
        let down = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let unasked = TlsServer::start(|mut stream| {
            use std::io::{Read, Write};
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte)?;
                head.push(byte[0]);
            }
            stream.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
        });
        let unasked = format!("127.0.0.1:{}", unasked.port);
        for endpoint in ["http://s3.corp.example", "https://s3.corp.example"] {
            for (at, words) in [(&down, "does not answer"), (&unasked, "status 407")] {
                let set = [("ALL_PROXY", &*format!("http://me:secret@{at}"))];
                let message = list(endpoint, &set).unwrap_err().to_string();
                assert!(message.contains(&format!("the proxy http://{at} (ALL_PROXY)")), "{message}");
                assert!(message.contains(words) && !message.contains("secret"), "{message}");
            }
        }
        // This machine has no proxy before it, by name or by number. The certificate does not have the
        // number.
        let by_number = server.url().replace("localhost", "127.0.0.1");
        for set in [&[("SSL_CERT_FILE", file), ("ALL_PROXY", &*down)][..], &[("SSL_CERT_FILE", file)]] {
            assert_eq!(list(&server.url(), set), Ok(1));
            let message = list(&by_number, set).unwrap_err().to_string();
            assert!(message.contains("it is of another host"), "{message}");
        }
    }
}
