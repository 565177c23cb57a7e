//! One connection: hyper's HTTP/1.1 over a [`Socket`](socket::Socket), and the service that
//! takes its requests to [`Dispatch`].
//!
//! While the host drains, the answer that is under way says `Connection:
//! close`; a connection without a request lingers a moment, for the one that
//! may be on its way.

use crate::answer::Answer;
use crate::dispatch::Dispatch;
use crate::limits::Limits;
use crate::socket::{self, Due, Progress};
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use wasmtime_wasi_http::Error;

/// What every connection of a listener shares.
pub struct Connections {
    pub dispatch: Arc<Dispatch>,
    pub drain: CancellationToken,
    pub linger: Duration,
    pub http1: http1::Builder,
}

impl Connections {
    pub fn new(dispatch: Arc<Dispatch>, drain: CancellationToken, limits: &Limits) -> Self {
        let mut http1 = http1::Builder::new();
        http1
            .timer(TokioTimer::new())
            // `socket` tells clients that have gone from those that have only
            // finished sending.
            .half_close(true)
            .header_read_timeout(limits.header_read)
            .max_headers(limits.headers)
            .max_header_size(limits.head_bytes);
        Self {
            dispatch,
            drain,
            linger: limits.linger,
            http1,
        }
    }

    /// Serves one connection to its end.
    pub async fn serve(&self, stream: TcpStream, peer: SocketAddr) {
        if let Err(error) = self.try_serve(stream).await {
            tracing::debug!("connection from {peer}: {error}");
        }
    }

    async fn try_serve(&self, stream: TcpStream) -> Result<(), hyper::Error> {
        let Ok(local) = stream.local_addr() else {
            return Ok(()); // The peer has reset it already.
        };
        let (socket, progress, watch) = socket::split(stream);
        let service = service_fn(|request| self.request(request, local, progress.clone()));
        let socket = TokioIo::new(socket);
        let mut connection = std::pin::pin!(self.http1.serve_connection(socket, service));
        let mut gone = std::pin::pin!(watch.gone());
        tokio::select! {
            biased;
            result = connection.as_mut() => return result,
            () = gone.as_mut() => return Ok(()),
            () = self.drain.cancelled() => {}
        }
        if progress.is_idle() {
            tokio::select! {
                biased;
                result = connection.as_mut() => return result,
                () = gone.as_mut() => return Ok(()),
                () = tokio::time::sleep(self.linger) => {}
            }
        }
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            biased;
            result = connection => result,
            () = gone => Ok(()),
        }
    }

    async fn request(
        &self,
        request: http::Request<Incoming>,
        local: SocketAddr,
        progress: Progress,
    ) -> Result<http::Response<Answering>, Infallible> {
        progress.received(request.body().is_end_stream());
        progress.due(Due::Head);
        let chunks = request.version() == http::Version::HTTP_11;
        let request = request.map(|body| {
            let progress = progress.clone();
            Received { body, progress }.boxed_unsync()
        });
        let mut response = self.dispatch.request(request, local, false).await;
        if self.drain.is_cancelled() {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        }
        // As hyper decides it: a length that is known is told.
        let has_length = response.headers().contains_key(CONTENT_LENGTH)
            || response.body().size_hint().exact().is_some();
        let chunks = chunks && !has_length;
        progress.due(if chunks { Due::Chunk } else { Due::Bytes });
        Ok(response.map(|body| Answering { body, progress }))
    }
}

/// A request's body; notes its end.
struct Received {
    body: Incoming,
    progress: Progress,
}

impl Body for Received {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame.is_none() || self.body.is_end_stream() {
            self.progress.received(true);
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Error::from)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An answer's body; notes its end.
struct Answering {
    body: Answer,
    progress: Progress,
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
        self.progress.due(Due::Nothing);
    }
}
