//! Servers with TLS and HTTP/2, by hyper, and the certificates for them.

use bytes::Bytes;
use http::{HeaderMap, Request, Response, Version};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, HandshakeKind, RootCertStore, ServerConfig};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;

/// What an upstream has seen so far.
#[derive(Clone, Default)]
pub struct Record {
    pub connections: usize,
    /// Handshakes that went on with an earlier session.
    pub resumed: usize,
    pub requests: Vec<Seen>,
}

#[derive(Clone, Debug)]
pub struct Seen {
    pub version: Version,
    pub authority: Option<String>,
    pub headers: HeaderMap,
}

/// A server on a port of 127.0.0.1. The path picks the answer:
///
/// | path       | answer |
/// |------------|--------|
/// | `/echo`    | the request's body and trailers, as they arrive |
/// | `/gaps`    | `ab` among empty frames |
/// | `/slow`    | `up`, after 200 ms |
/// | `/endless` | bytes without an end |
/// | `/close`   | `up`, and HTTP/1 closes the connection |
/// | others     | `up` |
pub struct Upstream {
    pub addr: SocketAddr,
    record: Arc<Mutex<Record>>,
    _runtime: Runtime,
}

impl Upstream {
    pub fn tls(config: ServerConfig) -> Upstream {
        Upstream::start(Some(TlsAcceptor::from(Arc::new(config))))
    }

    /// HTTP/2 from the first byte, without TLS.
    pub fn plain_http2() -> Upstream {
        Upstream::start(None)
    }

    fn start(tls: Option<TlsAcceptor>) -> Upstream {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let addr = listener.local_addr().unwrap();
        let record = Arc::<Mutex<Record>>::default();
        let shared = record.clone();
        runtime.spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (tls, record) = (tls.clone(), shared.clone());
                record.lock().unwrap().connections += 1;
                tokio::spawn(async move {
                    let Some(tls) = tls else {
                        return serve(socket, true, record).await;
                    };
                    let Ok(socket) = tls.accept(socket).await else {
                        return;
                    };
                    let session = socket.get_ref().1;
                    let resumed = session.handshake_kind() == Some(HandshakeKind::Resumed);
                    record.lock().unwrap().resumed += usize::from(resumed);
                    let http2 = session.alpn_protocol() == Some(b"h2");
                    serve(socket, http2, record).await;
                });
            }
        });
        Upstream {
            addr,
            record,
            _runtime: runtime,
        }
    }

    pub fn record(&self) -> Record {
        self.record.lock().unwrap().clone()
    }

    pub fn last(&self) -> Seen {
        self.record().requests.pop().expect("a request")
    }

    pub fn url(&self, target: &str) -> String {
        format!("https://{}{target}", self.addr)
    }
}

async fn serve<S>(socket: S, http2: bool, record: Arc<Mutex<Record>>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        record.lock().unwrap().requests.push(Seen {
            version: request.version(),
            authority: request.uri().authority().map(ToString::to_string),
            headers: request.headers().clone(),
        });
        answer(request)
    });
    let io = TokioIo::new(socket);
    // A client that breaks off is for the test to judge.
    if http2 {
        let builder = http2::Builder::new(TokioExecutor::new());
        let _ = builder.serve_connection(io, service).await;
    } else {
        let _ = http1::Builder::new().serve_connection(io, service).await;
    }
}

type Body = UnsyncBoxBody<Bytes, hyper::Error>;

async fn answer(request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let frames = |list: &'static [&'static str]| {
        let frames = list
            .iter()
            .map(|text| Ok(Frame::data(Bytes::from_static(text.as_bytes()))));
        StreamBody::new(futures::stream::iter(frames)).boxed_unsync()
    };
    let up = || {
        Full::new(Bytes::from_static(b"up"))
            .map_err(|never| match never {})
            .boxed_unsync()
    };
    let mut response = Response::new(match request.uri().path() {
        "/echo" => {
            let announced = request.headers().get("trailer").cloned();
            let mut response = Response::new(request.into_body().boxed_unsync());
            if let Some(names) = announced {
                response.headers_mut().insert("trailer", names);
            }
            return Ok(response);
        }
        "/gaps" => frames(&["", "a", "", "", "b", ""]),
        "/endless" => {
            let piece = || Ok(Frame::data(Bytes::from_static(&[b'x'; 16 << 10])));
            StreamBody::new(futures::stream::repeat_with(piece)).boxed_unsync()
        }
        "/slow" => {
            tokio::time::sleep(Duration::from_millis(200)).await;
            up()
        }
        _ => up(),
    });
    if request.uri().path() == "/close" {
        let close = http::HeaderValue::from_static("close");
        response.headers_mut().insert("connection", close);
    }
    Ok(response)
}

/// Signs certificates that nobody trusts who was not told to.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
}

/// A certificate and its key.
pub struct Identity {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let issuer = Issuer::new(params, key);
        Authority {
            issuer,
            certificate,
        }
    }

    /// A client that trusts this authority, and shows who it is.
    pub fn client(&self, identity: Option<&Identity>, alpn: &[&str]) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(Identity { certificate, key }) => {
                let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
                let chain = vec![certificate.der().clone()];
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        config
    }

    pub fn pem(&self) -> String {
        self.certificate.pem()
    }

    /// For these names and addresses.
    pub fn sign(&self, names: &[&str]) -> Identity {
        self.sign_until(names, 4000)
    }

    pub fn sign_until(&self, names: &[&str], year: i32) -> Identity {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Identity { certificate, key }
    }

    /// A server of 127.0.0.1 and localhost that offers these protocols.
    pub fn server(&self, alpn: &[&str]) -> ServerConfig {
        self.sign(&["127.0.0.1", "localhost"]).server(alpn, None)
    }
}

impl Identity {
    pub fn pem(&self) -> (String, String) {
        (self.certificate.pem(), self.key.serialize_pem())
    }

    /// Clients have to show a certificate of `clients`, if there is one.
    pub fn server(&self, alpn: &[&str], clients: Option<&Authority>) -> ServerConfig {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(authority.certificate.der().clone()).unwrap();
                let roots = Arc::new(roots);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let key = PrivateKeyDer::try_from(self.key.serialize_der()).unwrap();
        let chain = vec![self.certificate.der().clone()];
        let mut config = builder.with_single_cert(chain, key).unwrap();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        config
    }
}
