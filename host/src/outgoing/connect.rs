//! From a destination to a connection that speaks HTTP: resolve, filter by
//! policy, TCP, TLS, handshake.
//!
//! The address that the policy has checked is the one that is connected to:
//! a name is resolved once.

use super::destination::{Destination, Host, Scheme};
use super::policy::Policy;
use super::{Error, RequestBody};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

pub struct Connector {
    policy: Arc<Policy>,
}

impl Connector {
    pub fn new(policy: Arc<Policy>) -> Self {
        Self { policy }
    }

    pub async fn connect<B: RequestBody>(
        &self,
        destination: &Destination,
    ) -> Result<SendRequest<B>, Error> {
        let addresses = self.resolve(destination).await?;
        let tcp = connect_first(&addresses).await?;
        // Small requests must not wait for the acknowledgement of earlier ones.
        tcp.set_nodelay(true).map_err(Error::Unreachable)?;
        match destination.scheme {
            Scheme::Http => handshake(tcp).await,
            Scheme::Https => handshake(secure(tcp, destination).await?).await,
        }
    }

    async fn resolve(&self, destination: &Destination) -> Result<Vec<SocketAddr>, Error> {
        let port = destination.port;
        let found: Vec<IpAddr> = match &destination.host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => tokio::net::lookup_host((name.as_ref(), port))
                .await
                .map_err(|error| Error::Dns(format!("{name}: {error}")))?
                .map(|address| address.ip())
                .collect(),
        };
        let mut denied = None;
        let mut allowed = Vec::with_capacity(found.len());
        for address in found {
            match self.policy.check_address(destination, address) {
                Ok(()) => allowed.push(SocketAddr::new(address, port)),
                Err(reason) => denied = Some(reason),
            }
        }
        match denied {
            Some(reason) if allowed.is_empty() => Err(Error::Denied(reason.to_string())),
            None if allowed.is_empty() => Err(Error::Dns(format!("{destination} has no address"))),
            _ => Ok(allowed),
        }
    }
}

async fn connect_first(addresses: &[SocketAddr]) -> Result<TcpStream, Error> {
    let mut last = None;
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some((address, error)),
        }
    }
    let (address, error) = last.expect("resolve returns at least one address");
    let kind = error.kind();
    let error = std::io::Error::new(kind, format!("{address}: {error}"));
    Err(match kind {
        ErrorKind::ConnectionRefused => Error::Refused(error),
        _ => Error::Unreachable(error),
    })
}

async fn handshake<B: RequestBody>(
    io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<SendRequest<B>, Error> {
    let (sender, connection) = http1::handshake(TokioIo::new(io))
        .await
        .map_err(|error| super::classify(&error))?;
    // Ends when its sender is dropped or its peer closes; errors reach the
    // request that is under way.
    tokio::spawn(connection);
    Ok(sender)
}

async fn secure(
    tcp: TcpStream,
    destination: &Destination,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, Error> {
    let name = match &destination.host {
        Host::Address(address) => ServerName::IpAddress((*address).into()),
        Host::Name(name) => ServerName::try_from(name.to_string())
            .map_err(|error| Error::Invalid(format!("{name}: {error}")))?,
    };
    TlsConnector::from(tls_config())
        .connect(name, tcp)
        .await
        .map_err(
            |error| match error.get_ref().and_then(|e| e.downcast_ref()) {
                Some(rustls::Error::InvalidCertificate(reason)) => {
                    Error::TlsCertificate(format!("{destination}: {reason}"))
                }
                _ => Error::TlsProtocol(format!("{destination}: {error}")),
            },
        )
}

/// Built once for the process: reading the platform's roots takes
/// milliseconds, and sessions are resumed only through a shared configuration.
fn tls_config() -> Arc<rustls::ClientConfig> {
    static CONFIG: OnceLock<Arc<rustls::ClientConfig>> = OnceLock::new();
    Arc::clone(CONFIG.get_or_init(|| {
        let mut roots = rustls::RootCertStore {
            roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
        };
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring has the ciphers of TLS 1.2 and 1.3")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Arc::new(config)
    }))
}
