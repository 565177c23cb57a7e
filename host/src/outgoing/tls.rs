//! TLS towards upstreams: one configuration for the process, and one more for
//! each destination that asks for a client certificate.

use super::Error;
use super::destination::{Destination, Host};
use crate::tls::read_certificates;
use anyhow::Context as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, ClientConfig, RootCertStore};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A certificate that is shown to one destination.
#[derive(Clone, Debug)]
pub struct ClientCertificate {
    pub destination: Destination,
    /// PEM; the certificate first, then those that lead to its root.
    pub certificates: PathBuf,
    /// PEM.
    pub key: PathBuf,
}

pub struct Tls {
    extra_roots: Vec<CertificateDer<'static>>,
    identities: HashMap<Destination, Identity>,
    /// Built when it is first needed: reading the platform's roots takes
    /// milliseconds. Shared, because sessions are resumed only through one
    /// configuration.
    shared: OnceLock<Arc<ClientConfig>>,
}

struct Identity {
    certificates: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    config: OnceLock<Arc<ClientConfig>>,
}

impl Tls {
    /// Trusts the platform's roots, the bundled ones of Mozilla, and those in
    /// the PEM files `extra_roots`.
    ///
    /// # Errors
    /// A file cannot be read, or has no certificate or key.
    pub fn new(extra_roots: &[PathBuf], identities: &[ClientCertificate]) -> anyhow::Result<Self> {
        let mut roots = Vec::new();
        for file in extra_roots {
            roots.extend(read_certificates(file)?);
        }
        let identities = identities.iter().map(|identity| {
            let key = PrivateKeyDer::from_pem_file(&identity.key)
                .with_context(|| format!("no private key in {}", identity.key.display()))?;
            let certificates = read_certificates(&identity.certificates)?;
            let config = OnceLock::new();
            let destination = identity.destination.clone();
            Ok((
                destination,
                Identity {
                    certificates,
                    key,
                    config,
                },
            ))
        });
        let tls = Self {
            extra_roots: roots,
            identities: identities.collect::<anyhow::Result<_>>()?,
            shared: OnceLock::new(),
        };
        for (destination, identity) in &tls.identities {
            // Here rather than at the first request.
            tls.identified(identity)
                .with_context(|| format!("the client certificate for {destination}"))?;
        }
        Ok(tls)
    }

    /// The handshake. `h2` and `http/1.1` are offered.
    pub async fn connect(
        &self,
        tcp: TcpStream,
        destination: &Destination,
    ) -> Result<TlsStream<TcpStream>, Error> {
        let name = match &destination.host {
            Host::Address(address) => ServerName::IpAddress((*address).into()),
            Host::Name(name) => ServerName::try_from(name.to_string())
                .map_err(|error| Error::Invalid(format!("{name}: {error}")))?,
        };
        let config = match self.identities.get(destination) {
            Some(identity) => self.identified(identity),
            None => Ok(Arc::clone(self.shared.get_or_init(|| {
                let config = self.builder().with_no_client_auth();
                Arc::new(with_alpn(config))
            }))),
        };
        let config = config.map_err(|error| Error::TlsProtocol(format!("{error:#}")))?;
        TlsConnector::from(config)
            .connect(name, tcp)
            .await
            .map_err(|error| explain(destination, &error))
    }

    fn identified(&self, identity: &Identity) -> anyhow::Result<Arc<ClientConfig>> {
        if let Some(config) = identity.config.get() {
            return Ok(Arc::clone(config));
        }
        let key = identity.key.clone_key();
        let config = self
            .builder()
            .with_client_auth_cert(identity.certificates.clone(), key)?;
        let config = Arc::new(with_alpn(config));
        Ok(Arc::clone(identity.config.get_or_init(|| config)))
    }

    fn builder(&self) -> rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert> {
        let mut roots = RootCertStore {
            roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
        };
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        roots.add_parsable_certificates(self.extra_roots.iter().cloned());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring has the ciphers of TLS 1.2 and 1.3")
            .with_root_certificates(roots)
    }
}

fn with_alpn(mut config: ClientConfig) -> ClientConfig {
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}

fn explain(destination: &Destination, error: &std::io::Error) -> Error {
    match error.get_ref().and_then(|error| error.downcast_ref()) {
        Some(rustls::Error::InvalidCertificate(reason)) => {
            Error::TlsCertificate(format!("{destination}: {reason}"))
        }
        Some(rustls::Error::AlertReceived(alert)) => alert_received(*alert),
        _ => Error::TlsProtocol(format!("{destination}: {error}")),
    }
}

fn alert_received(alert: AlertDescription) -> Error {
    Error::TlsAlert {
        id: u8::from(alert),
        name: format!("{alert:?}"),
    }
}

/// The alert behind a broken connection: in TLS 1.3 a client's certificate is
/// refused only after the handshake is over for us.
pub fn alert(error: &hyper::Error) -> Option<Error> {
    let source = std::error::Error::source(error)?;
    let io = source.downcast_ref::<std::io::Error>()?;
    match io.get_ref()?.downcast_ref()? {
        rustls::Error::AlertReceived(alert) => Some(alert_received(*alert)),
        _ => None,
    }
}
