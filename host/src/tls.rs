//! TLS towards clients: certificates chosen by name, read again when their
//! files change, and certificates of clients where they are asked for.
//!
//! The handshake runs in the connection's own task, with a deadline.

use anyhow::{Context as _, ensure};
use arc_swap::ArcSwap;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio_rustls::TlsAcceptor;

/// How often the files are looked at.
const RELOAD: Duration = Duration::from_secs(1);

/// A certificate and its key, in PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPair {
    /// The certificate first, then those that lead to its root.
    pub certificates: PathBuf,
    pub key: PathBuf,
}

/// What a listener shows to its clients, and asks of them.
#[derive(Clone, Debug)]
pub struct TlsConfig {
    /// The first is for clients that name no server, or an unknown one.
    pub key_pairs: Vec<KeyPair>,
    /// Roots, in PEM; a client then needs a certificate that leads to one.
    pub client_roots: Option<PathBuf>,
}

pub struct ServerTls(TlsAcceptor);

impl ServerTls {
    /// # Errors
    /// A file cannot be read, has no certificate or key, or they do not fit.
    pub fn new(config: &TlsConfig) -> anyhow::Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("ring has the ciphers of TLS 1.2 and 1.3");
        let builder = match &config.client_roots {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let mut roots = RootCertStore::empty();
                for certificate in read_certificates(file)? {
                    roots.add(certificate)?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build()?)
            }
        };
        let keys = Arc::new(Keys(ArcSwap::from_pointee(read(&config.key_pairs)?)));
        tokio::spawn(reload(Arc::downgrade(&keys), config.key_pairs.clone()));
        let mut server = builder.with_cert_resolver(keys);
        server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self(TlsAcceptor::from(Arc::new(server))))
    }

    pub fn acceptor(&self) -> &TlsAcceptor {
        &self.0
    }
}

#[derive(Debug)]
struct Keys(ArcSwap<Vec<Arc<CertifiedKey>>>);

impl ResolvesServerCert for Keys {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let keys = self.0.load();
        let name = hello
            .server_name()
            .and_then(|name| ServerName::try_from(name).ok());
        let named = name.and_then(|name| keys.iter().find(|key| is_for(key, &name)));
        named.or_else(|| keys.first()).cloned()
    }
}

fn is_for(key: &CertifiedKey, name: &ServerName<'_>) -> bool {
    let Ok(certificate) = key.end_entity_cert() else {
        return false;
    };
    rustls::server::ParsedCertificate::try_from(certificate)
        .is_ok_and(|parsed| rustls::client::verify_server_name(&parsed, name).is_ok())
}

fn read(pairs: &[KeyPair]) -> anyhow::Result<Vec<Arc<CertifiedKey>>> {
    pairs
        .iter()
        .map(|pair| Ok(Arc::new(read_pair(pair)?)))
        .collect()
}

fn read_pair(pair: &KeyPair) -> anyhow::Result<CertifiedKey> {
    let certificates = read_certificates(&pair.certificates)?;
    let key = PrivateKeyDer::from_pem_file(&pair.key)
        .with_context(|| format!("no private key in {}", pair.key.display()))?;
    let provider = rustls::crypto::ring::default_provider();
    CertifiedKey::from_der(certificates, key, &provider).with_context(|| {
        let (key, certificates) = (pair.key.display(), pair.certificates.display());
        format!("{key} is not the key of {certificates}")
    })
}

/// All certificates of a PEM file.
pub fn read_certificates(file: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let certificates = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| format!("no certificates in {}", file.display()))?;
    ensure!(
        !certificates.is_empty(),
        "no certificates in {}",
        file.display()
    );
    Ok(certificates)
}

/// Ends with the listener.
async fn reload(keys: std::sync::Weak<Keys>, pairs: Vec<KeyPair>) {
    let mut known = changed(&pairs);
    loop {
        tokio::time::sleep(RELOAD).await;
        let Some(keys) = keys.upgrade() else { return };
        let now = changed(&pairs);
        if now == known {
            continue;
        }
        known = now;
        match read(&pairs) {
            Ok(read) => {
                keys.0.store(Arc::new(read));
                tracing::info!("TLS certificates read again");
            }
            // Perhaps only one of two files is new yet.
            Err(error) => tracing::error!("TLS certificates not read again: {error:#}"),
        }
    }
}

fn changed(pairs: &[KeyPair]) -> Vec<Option<SystemTime>> {
    let files = pairs
        .iter()
        .flat_map(|pair| [&pair.certificates, &pair.key]);
    files
        .map(|file| {
            std::fs::metadata(file)
                .and_then(|data| data.modified())
                .ok()
        })
        .collect()
}
