//! One connection: TLS or not, HTTP/1.1 or HTTP/2, and the service that takes
//! its requests to [`Dispatch`].
//!
//! The version is told by ALPN under TLS, and by the client's first bytes
//! without (RFC 9113 sections 3.2 and 3.3). While the host drains, the answer
//! that is under way says `Connection: close`; a connection without a request
//! lingers a moment, for the one that may be on its way.

use crate::answer::Answer;
use crate::dispatch::{Dispatch, Hop};
use crate::limits::Limits;
use crate::received::{BodyLimits, Received, Trouble};
use crate::socket::{Due, Input, Plain, Progress, Socket};
use crate::tls::ServerTls;
use crate::watch::{self, Patience, Watch};
use bytes::Bytes;
use http::StatusCode;
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use wasmtime_wasi_http::Error;

/// Streams that one HTTP/2 connection may have open at once, RFC 9113 section
/// 5.1.2.
const STREAMS: u32 = 256;

/// Streams of one connection that may be reset before they were served, and
/// for mistakes; more end it ("rapid reset", CVE-2023-44487).
const RESETS: usize = 64;

/// What every connection of a listener shares.
pub struct Connections {
    dispatch: Arc<Dispatch>,
    drain: CancellationToken,
    tls: Option<ServerTls>,
    /// For TLS, or the first bytes.
    handshake: Duration,
    linger: Duration,
    patience: Patience,
    body_limits: BodyLimits,
    /// After that many, a connection is closed.
    requests: u64,
    http1: http1::Builder,
    /// For HTTP/1.1 under TLS.
    https1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
}

impl Connections {
    pub fn new(
        dispatch: Arc<Dispatch>,
        tls: Option<ServerTls>,
        drain: CancellationToken,
        limits: &Limits,
    ) -> Self {
        let mut https1 = http1::Builder::new();
        https1
            // So does `watch`, where an idle connection is not a slow one.
            .header_read_timeout(None)
            .max_headers(limits.headers)
            .max_header_size(limits.head_bytes);
        let mut http1 = https1.clone();
        // `watch` tells clients that have gone from those that have only
        // finished sending.
        http1.half_close(true);
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .max_pending_accept_reset_streams(RESETS)
            .max_local_error_reset_streams(RESETS)
            .max_header_list_size(u32::try_from(limits.head_bytes).unwrap_or(u32::MAX))
            .keep_alive_interval(limits.idle)
            .keep_alive_timeout(limits.header_read);
        Self {
            dispatch,
            drain,
            tls,
            handshake: limits.header_read,
            linger: limits.linger,
            patience: Patience::new(limits),
            body_limits: BodyLimits::new(limits),
            requests: limits.requests_per_connection,
            http1,
            https1,
            http2,
        }
    }

    /// Serves one connection to its end.
    pub async fn serve(&self, stream: TcpStream, peer: SocketAddr) {
        let served = match &self.tls {
            None => self.serve_plain(stream).await,
            Some(tls) => self.serve_tls(stream, tls).await,
        };
        let Err(error) = served else { return };
        let hyper = error.downcast_ref::<hyper::Error>();
        if hyper.is_some_and(|error| error.is_parse() || error.is_parse_too_large()) {
            // hyper has answered it, and no request came of it.
            tracing::info!("connection from {peer}: bad-request: {error:#}");
        } else {
            tracing::debug!("connection from {peer}: {error:#}");
        }
    }

    async fn serve_plain(&self, stream: TcpStream) -> anyhow::Result<()> {
        let local = stream.local_addr()?;
        let first_bytes = tokio::select! {
            first_bytes = timeout(self.handshake, speaks_http2(&stream)) => first_bytes,
            () = self.lingered() => return Ok(()),
        };
        let Ok(speaks_http2) = first_bytes else {
            watch::say_too_late(&stream);
            return Ok(());
        };
        if speaks_http2? {
            return self.serve_http2(stream, local, false).await;
        }
        let (plain, input) = Plain::new(stream);
        self.serve_http1(&self.http1, plain, Some(input), local, false)
            .await
    }

    async fn serve_tls(&self, stream: TcpStream, tls: &ServerTls) -> anyhow::Result<()> {
        let local = stream.local_addr()?;
        let stream = tokio::select! {
            stream = timeout(self.handshake, tls.acceptor().accept(stream)) => stream??,
            () = self.lingered() => return Ok(()),
        };
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            return self.serve_http2(stream, local, true).await;
        }
        self.serve_http1(&self.https1, stream, None, local, true)
            .await
    }

    /// Resolves when the host drains and a connection without a request has
    /// been given its time.
    async fn lingered(&self) {
        self.drain.cancelled().await;
        tokio::time::sleep(self.linger).await;
    }

    async fn serve_http1(
        &self,
        http1: &http1::Builder,
        io: impl AsyncRead + AsyncWrite + Send + Unpin,
        input: Option<Input>,
        local: SocketAddr,
        https: bool,
    ) -> anyhow::Result<()> {
        let (socket, progress, shared) = Socket::new(io);
        let watch = Watch::new(shared, input);
        let service =
            service_fn(|request| self.request_http1(request, local, https, progress.clone()));
        let mut connection = std::pin::pin!(http1.serve_connection(TokioIo::new(socket), service));
        let mut over = std::pin::pin!(async {
            tokio::select! {
                () = watch.gone() => {}
                late = watch.late(self.patience) => watch.part(late),
            }
        });
        tokio::select! {
            biased;
            result = connection.as_mut() => return Ok(result?),
            () = over.as_mut() => return Ok(()),
            () = self.drain.cancelled() => {}
        }
        // What is under way says `Connection: close`, unless its head has left
        // before: then the next answer does.
        let lingered = async {
            progress.idle().await;
            tokio::time::sleep(self.linger).await;
        };
        tokio::select! {
            biased;
            result = connection.as_mut() => return Ok(result?),
            () = over.as_mut() => return Ok(()),
            () = lingered => {}
        }
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            biased;
            result = connection => Ok(result?),
            () = over => Ok(()),
        }
    }

    async fn serve_http2(
        &self,
        io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        local: SocketAddr,
        https: bool,
    ) -> anyhow::Result<()> {
        let (dispatch, limits) = (Arc::clone(&self.dispatch), self.body_limits);
        let streams = Arc::<Streams>::default();
        let opened = Arc::clone(&streams);
        let service = service_fn(move |request: http::Request<Incoming>| {
            let dispatch = Arc::clone(&dispatch);
            let trouble = Arc::<Trouble>::default();
            let request = request.map(|body| {
                let trouble = Arc::clone(&trouble);
                Received::new(body, limits, None, trouble).boxed_unsync()
            });
            let hop = Hop {
                local,
                https,
                trouble,
            };
            let stream = Streams::open(&opened);
            async move {
                let response = dispatch.request(request, hop).await;
                Ok::<_, Infallible>(response.map(|body| Answering {
                    body,
                    progress: None,
                    _stream: Some(stream),
                }))
            }
        });
        let mut connection = std::pin::pin!(self.http2.serve_connection(TokioIo::new(io), service));
        tokio::select! {
            biased;
            result = connection.as_mut() => return Ok(result?),
            // hyper itself waits for the preface and for acknowledgements, but
            // for a first request it would wait for ever.
            () = streams.none_for(self.handshake, true) => return Ok(()),
            () = self.drain.cancelled() => {}
        }
        // GOAWAY, and what has begun goes on.
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            biased;
            result = connection => Ok(result?),
            () = streams.none_for(self.linger, false) => Ok(()),
        }
    }

    async fn request_http1(
        &self,
        request: http::Request<Incoming>,
        local: SocketAddr,
        https: bool,
        progress: Progress,
    ) -> Result<http::Response<Answering>, Infallible> {
        let number = progress.requested();
        progress.received(request.body().is_end_stream());
        progress.due(Due::Head);
        let chunks = request.version() == http::Version::HTTP_11;
        let trouble = Arc::<Trouble>::default();
        let request = request.map(|body| {
            let (progress, trouble) = (progress.clone(), Arc::clone(&trouble));
            Received::new(body, self.body_limits, Some(progress), trouble).boxed_unsync()
        });
        let hop = Hop {
            local,
            https,
            trouble,
        };
        let mut response = self.dispatch.request(request, hop).await;
        // After a request that was not understood, nobody knows where the next
        // one begins.
        let lost = matches!(
            response.status(),
            StatusCode::BAD_REQUEST | StatusCode::NOT_IMPLEMENTED
        ) && response.body().is_ours();
        if lost || self.drain.is_cancelled() || number >= self.requests {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        }
        // As hyper decides it: a length that is known is told.
        let has_length = response.headers().contains_key(CONTENT_LENGTH)
            || response.body().size_hint().exact().is_some();
        let chunks = chunks && !has_length;
        progress.due(if chunks { Due::Chunk } else { Due::Bytes });
        Ok(response.map(|body| Answering {
            body,
            progress: Some(progress),
            _stream: None,
        }))
    }
}

/// Whether a client begins with the preface of HTTP/2, RFC 9113 section 3.4.
/// No request of HTTP/1 begins like that.
async fn speaks_http2(stream: &TcpStream) -> std::io::Result<bool> {
    const PREFACE: &[u8; 4] = b"PRI ";
    let mut first = [0; PREFACE.len()];
    loop {
        let seen = stream.peek(&mut first).await?;
        if seen == 0 || first[..seen] != PREFACE[..seen] {
            return Ok(false);
        }
        if seen == PREFACE.len() {
            return Ok(true);
        }
        // What has been seen stays there, so nothing tells of more.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The streams of one HTTP/2 connection.
#[derive(Default)]
struct Streams {
    open: AtomicUsize,
    ever: AtomicBool,
    fewer: Notify,
}

/// One of them; ends when dropped.
struct Stream(Arc<Streams>);

impl Streams {
    fn open(streams: &Arc<Self>) -> Stream {
        streams.open.fetch_add(1, Ordering::AcqRel);
        streams.ever.store(true, Ordering::Release);
        Stream(Arc::clone(streams))
    }

    /// Resolves when no stream has been open for `time`; if `first`, only
    /// when there has been none at all.
    async fn none_for(&self, time: Duration, first: bool) {
        loop {
            let mut fewer = std::pin::pin!(self.fewer.notified());
            fewer.as_mut().enable();
            if self.open.load(Ordering::Acquire) == 0 {
                tokio::time::sleep(time).await;
                if first && self.ever.load(Ordering::Acquire) {
                    std::future::pending::<()>().await;
                }
                if self.open.load(Ordering::Acquire) == 0 {
                    return;
                }
            }
            fewer.await;
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
        self.0.fewer.notify_waiters();
    }
}

/// An answer's body; notes its end.
struct Answering {
    body: Answer,
    progress: Option<Progress>,
    _stream: Option<Stream>,
}

impl Body for Answering {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.progress
            .iter()
            .for_each(|progress| progress.due(Due::Nothing));
    }
}
