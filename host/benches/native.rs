//! What stands behind and beside the host: the upstream that guests call, and a native proxy that
//! does what the forwarding servlet does. Each runs in a process of its own.

use crate::servers::LISTENING;
use anyhow::Context as _;
use bytes::Bytes;
use http::header::{self, HeaderName};
use http::{HeaderMap, Request, Response, Uri};
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::error::Error;
use std::io::Read as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Builder;

/// As long as the host's.
const BACKLOG: u32 = 4096;

const HOP_BY_HOP: [HeaderName; 6] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Waits `delay` milliseconds, then answers `answer N`, N being the request's `x-number`.
pub fn upstream() -> anyhow::Result<()> {
    end_with_parent();
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(|request: Request<Incoming>| async move {
        let query = request.uri().query().unwrap_or_default();
        let delay = query
            .split('&')
            .find_map(|pair| pair.strip_prefix("delay=")?.parse().ok());
        if let Some(delay @ 1..) = delay {
            tokio::time::sleep(Duration::from_millis(delay)).await;
        }
        let number = request.headers().get("x-number");
        let number = number.map_or(&b"?"[..], |value| value.as_bytes());
        let text = [b"answer ", number, b"\n"].concat();
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(text))))
    }))
}

/// Passes each request on to `upstream`, as the servlet does, over connections that are kept.
pub fn proxy(upstream: SocketAddr) -> anyhow::Result<()> {
    end_with_parent();
    let pool = Pool {
        upstream,
        unused: Arc::default(),
    };
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(move |request| forward(pool.clone(), request)))
}

/// The parent holds the other end of stdin, and never writes.
fn end_with_parent() {
    std::thread::spawn(|| {
        _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
}

async fn serve<Service, Answer, Failure, Content>(service: Service) -> anyhow::Result<()>
where
    Service: Fn(Request<Incoming>) -> Answer + Clone + Send + 'static,
    Answer: Future<Output = Result<Response<Content>, Failure>> + Send,
    Failure: Into<Box<dyn Error + Send + Sync>>,
    Content: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    let listener = socket.listen(BACKLOG)?;
    eprintln!("{LISTENING}{}/", listener.local_addr()?);
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let connection = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(socket), service_fn(service.clone()));
        // A client that leaves ends its connection with an error, which concerns nobody.
        tokio::spawn(async { _ = connection.await });
    }
}

async fn forward(pool: Pool, request: Request<Incoming>) -> anyhow::Result<Response<Incoming>> {
    let (mut head, body) = request.into_parts();
    let query = head.uri.query().unwrap_or_default();
    head.uri = format!("/remoteApp/remote?{query}").parse::<Uri>()?;
    remove_hop_by_hop(&mut head.headers);
    let host = pool.upstream.to_string().parse()?;
    head.headers.insert(header::HOST, host);
    let mut response = pool.send(Request::from_parts(head, body)).await?;
    remove_hop_by_hop(response.headers_mut());
    Ok(response)
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Connections to the upstream that are not in use, the youngest last.
#[derive(Clone)]
struct Pool {
    upstream: SocketAddr,
    unused: Arc<Mutex<Vec<SendRequest<Incoming>>>>,
}

impl Pool {
    async fn send(&self, request: Request<Incoming>) -> anyhow::Result<Response<Incoming>> {
        let mut sender = match self.take() {
            Some(sender) => sender,
            None => self.connect().await.context("cannot reach the upstream")?,
        };
        let response = sender.send_request(request).await?;
        if sender.is_ready() {
            self.put(sender);
        } else {
            // Free again when the body of the response has been read.
            let pool = self.clone();
            tokio::spawn(async move {
                if sender.ready().await.is_ok() {
                    pool.put(sender);
                }
            });
        }
        Ok(response)
    }

    fn take(&self) -> Option<SendRequest<Incoming>> {
        let mut unused = self.unused.lock().expect("nobody panics with the pool");
        std::iter::from_fn(|| unused.pop()).find(SendRequest::is_ready)
    }

    fn put(&self, sender: SendRequest<Incoming>) {
        let mut unused = self.unused.lock().expect("nobody panics with the pool");
        unused.push(sender);
    }

    async fn connect(&self) -> anyhow::Result<SendRequest<Incoming>> {
        let socket = TcpStream::connect(self.upstream).await?;
        socket.set_nodelay(true)?;
        let (sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(socket)).await?;
        tokio::spawn(async { _ = connection.await });
        Ok(sender)
    }
}
