//! A client with TLS and HTTP/2, by hyper, that sees what a browser would.

use crate::harness::PATIENCE;
use crate::upstream::{Authority, Identity};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::{CertificateDer, ServerName};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio_rustls::TlsConnector;

pub struct Client {
    pub runtime: Runtime,
    sender: Sender,
    /// What the server has shown.
    pub certificate: Option<CertificateDer<'static>>,
    authority: String,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// How to connect.
pub struct Tls<'a> {
    pub trust: &'a Authority,
    pub name: &'a str,
    pub alpn: &'a [&'a str],
    pub identity: Option<&'a Identity>,
}

impl Client {
    pub fn tls(addr: SocketAddr, tls: &Tls<'_>) -> Result<Client, String> {
        let runtime = runtime();
        let config = tls.trust.client(tls.identity, tls.alpn);
        let connected = runtime.block_on(async {
            let tcp = TcpStream::connect(addr).await.map_err(|e| e.to_string())?;
            let name = ServerName::try_from(tls.name.to_owned()).unwrap();
            let connector = TlsConnector::from(Arc::new(config));
            let stream = connector
                .connect(name, tcp)
                .await
                .map_err(|e| e.to_string())?;
            let session = stream.get_ref().1;
            let certificate = session.peer_certificates().unwrap()[0].clone().into_owned();
            let http2 = session.alpn_protocol() == Some(b"h2");
            Ok::<_, String>((handshake(stream, http2).await?, certificate))
        });
        let (sender, certificate) = connected?;
        Ok(Client {
            runtime,
            sender,
            certificate: Some(certificate),
            authority: format!("https://{}:{}", tls.name, addr.port()),
        })
    }

    pub fn plain_http2(addr: SocketAddr) -> Client {
        let runtime = runtime();
        let sender = runtime.block_on(async {
            let tcp = TcpStream::connect(addr).await.unwrap();
            handshake(tcp, true).await.unwrap()
        });
        Client {
            runtime,
            sender,
            certificate: None,
            authority: format!("http://{addr}"),
        }
    }

    pub fn is_http2(&self) -> bool {
        matches!(self.sender, Sender::Http2(_))
    }

    /// A request that is under way.
    pub fn send(
        &mut self,
        method: &str,
        target: &str,
        body: &[u8],
    ) -> impl Future<Output = Result<Response<Incoming>, hyper::Error>> + use<> {
        if let Sender::Http1(sender) = &mut self.sender {
            // The driver of the connection has a thread of its own.
            self.runtime.block_on(sender.ready()).unwrap();
        }
        let uri = match &self.sender {
            Sender::Http1(_) => target.to_owned(),
            Sender::Http2(_) => format!("{}{target}", self.authority),
        };
        let mut request = Request::builder().method(method).uri(uri);
        if let Sender::Http1(_) = self.sender {
            let (_, host) = self.authority.split_once("://").unwrap();
            request = request.header("host", host);
        }
        let request = request
            .body(Full::new(Bytes::copy_from_slice(body)))
            .unwrap();
        let sent = match &mut self.sender {
            Sender::Http1(sender) => futures::future::Either::Left(sender.send_request(request)),
            Sender::Http2(sender) => futures::future::Either::Right(sender.send_request(request)),
        };
        async move {
            tokio::time::timeout(PATIENCE, sent)
                .await
                .expect("an answer in time")
        }
    }

    /// Status, body, and trailers if there were any.
    pub fn ask(&mut self, method: &str, target: &str, body: &[u8]) -> Result<Got, String> {
        let response = self.send(method, target, body);
        self.runtime.block_on(async {
            let response = response.await.map_err(|error| error.to_string())?;
            let status = response.status().as_u16();
            let collected = tokio::time::timeout(PATIENCE, response.into_body().collect());
            let collected = collected.await.expect("a body in time");
            let collected = collected.map_err(|error| error.to_string())?;
            let trailers = collected.trailers().cloned().unwrap_or_default();
            let text = String::from_utf8(collected.to_bytes().to_vec()).unwrap();
            Ok(Got {
                status,
                text,
                trailers,
            })
        })
    }
}

#[derive(Debug)]
pub struct Got {
    pub status: u16,
    pub text: String,
    pub trailers: http::HeaderMap,
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

async fn handshake<S>(stream: S, http2: bool) -> Result<Sender, String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let io = TokioIo::new(stream);
    if http2 {
        let handshake = http2::handshake(TokioExecutor::new(), io).await;
        let (sender, connection) = handshake.map_err(|error| error.to_string())?;
        tokio::spawn(connection);
        return Ok(Sender::Http2(sender));
    }
    let (sender, connection) = http1::handshake(io)
        .await
        .map_err(|error| error.to_string())?;
    tokio::spawn(connection);
    Ok(Sender::Http1(sender))
}
