//! From a destination to a connection that speaks HTTP: resolve, filter by
//! policy, TCP, TLS, handshake.
//!
//! The address that the policy has checked is the one that is connected to:
//! a name is resolved once.

use super::destination::{Destination, Host, Scheme};
use super::policy::Policy;
use super::pool::{Sender, Slot};
use super::request::Sending;
use super::resolve::Resolver;
use super::tls::Tls;
use super::{Error, RequestBody, within};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::collections::HashSet;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

/// How long an attempt is alone before the next address is tried beside it,
/// RFC 8305 section 5.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Bytes that an HTTP/2 upstream may send ahead on one stream, and on all of
/// one connection.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;

/// Bytes of a response's head, and of what is read ahead of its body.
const MOST_BUFFERED: usize = 64 << 10;

/// No file descriptor left in this process, or in the system.
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;

/// `EADDRNOTAVAIL` for a connection is about our side.
const NO_LOCAL_PORT: ErrorKind = ErrorKind::AddrNotAvailable;

pub struct Connector {
    pub policy: Arc<Policy>,
    pub resolver: Arc<Resolver>,
    pub tls: Arc<Tls>,
    /// Plain destinations that are known to speak HTTP/2.
    pub prior_knowledge: HashSet<Destination>,
}

impl Connector {
    /// Within `deadline`. `slot` lives as long as the connection.
    pub async fn connect<B: RequestBody>(
        &self,
        destination: &Destination,
        slot: Slot<B>,
        deadline: Instant,
    ) -> Result<Sender<B>, Error> {
        let left = || deadline.saturating_duration_since(Instant::now());
        let addresses = within(left(), self.resolve(destination))
            .await
            .ok_or_else(|| match &destination.host {
                Host::Name(name) => Error::DnsTimeout(name.to_string()),
                Host::Address(_) => Error::ConnectTimeout,
            })??;
        let opened = self.open(destination, &addresses, slot);
        within(left(), opened).await.ok_or(Error::ConnectTimeout)?
    }

    async fn open<B: RequestBody>(
        &self,
        destination: &Destination,
        addresses: &[SocketAddr],
        slot: Slot<B>,
    ) -> Result<Sender<B>, Error> {
        let tcp = connect_first(addresses).await?;
        // A small request must not wait for the acknowledgement of earlier ones.
        tcp.set_nodelay(true).map_err(Error::Connect)?;
        match destination.scheme {
            Scheme::Http if self.prior_knowledge.contains(destination) => {
                handshake_http2(tcp, slot).await
            }
            Scheme::Http => handshake_http1(tcp, slot).await,
            Scheme::Https => {
                let tls = self.tls.connect(tcp, destination).await?;
                match tls.get_ref().1.alpn_protocol() {
                    Some(b"h2") => handshake_http2(tls, slot).await,
                    _ => handshake_http1(tls, slot).await,
                }
            }
        }
    }

    async fn resolve(&self, destination: &Destination) -> Result<Vec<SocketAddr>, Error> {
        let found = match &destination.host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => self.resolver.lookup(name).await?,
        };
        let mut denied = None;
        let mut allowed = Vec::with_capacity(found.len());
        for address in found {
            match self.policy.check_address(destination, address) {
                Ok(()) => allowed.push(SocketAddr::new(address, destination.port)),
                Err(reason) => denied = Some(reason),
            }
        }
        match denied {
            Some(reason) if allowed.is_empty() => Err(Error::DeniedAddress(reason.to_string())),
            _ => Ok(interleave(allowed)),
        }
    }
}

/// IPv6 first, then in turn, RFC 8305 section 4: where one family is broken,
/// the second attempt already uses the other.
fn interleave(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let (v6, v4): (Vec<_>, Vec<_>) = addresses.into_iter().partition(SocketAddr::is_ipv6);
    let (mut v6, mut v4) = (v6.into_iter(), v4.into_iter());
    let mut ordered = Vec::with_capacity(v6.len() + v4.len());
    loop {
        match (v6.next(), v4.next()) {
            (None, None) => return ordered,
            (first, second) => ordered.extend(first.into_iter().chain(second)),
        }
    }
}

/// The first connection that comes about, RFC 8305 section 5.
async fn connect_first(addresses: &[SocketAddr]) -> Result<TcpStream, Error> {
    let mut untried = addresses.iter();
    let mut attempts = FuturesUnordered::new();
    let mut last = None;
    loop {
        if let Some(address) = untried.next() {
            attempts.push(async move { (address, TcpStream::connect(address).await) });
        }
        let finished = match untried.len() {
            0 => attempts.next().await,
            _ => match timeout(ATTEMPT_DELAY, attempts.next()).await {
                Ok(finished) => finished,
                Err(_) => continue,
            },
        };
        match finished {
            Some((_, Ok(stream))) => return Ok(stream),
            Some((address, Err(error))) => last = Some((address, error)),
            None => break,
        }
    }
    let Some((address, error)) = last else {
        return Err(Error::NoAddress("the name".into()));
    };
    let (kind, code) = (error.kind(), error.raw_os_error());
    let error = std::io::Error::new(kind, format!("{address}: {error}"));
    Err(match (kind, code) {
        (ErrorKind::ConnectionRefused, _) => Error::Refused(error),
        (NO_LOCAL_PORT, _) => Error::NoLocalPort(*address),
        (_, Some(EMFILE | ENFILE)) => {
            Error::ConnectionLimit("this process has no file descriptor left (ulimit -n)".into())
        }
        _ => Error::Connect(error),
    })
}

/// The driver of a connection ends when its sender is dropped or its peer
/// closes; its errors reach the request that is under way.
async fn handshake_http1<B: RequestBody>(
    io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    mut slot: Slot<B>,
) -> Result<Sender<B>, Error> {
    let (sender, connection) = http1::Builder::new()
        .max_buf_size(MOST_BUFFERED)
        .handshake::<_, Sending<B>>(TokioIo::new(io))
        .await
        .map_err(|error| super::classify(&error))?;
    slot.opened();
    tokio::spawn(async move {
        _ = connection.await;
        drop(slot);
    });
    Ok(Sender::Http1(sender))
}

async fn handshake_http2<B: RequestBody>(
    io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    mut slot: Slot<B>,
) -> Result<Sender<B>, Error> {
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .handshake::<_, Sending<B>>(TokioIo::new(io))
        .await
        .map_err(|error| super::classify(&error))?;
    slot.opened();
    tokio::spawn(async move {
        _ = connection.await;
        drop(slot);
    });
    Ok(Sender::Http2(sender))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns_and_ipv6_begins() {
        let parse = |list: &str| -> Vec<SocketAddr> {
            list.split(' ').map(|text| text.parse().unwrap()).collect()
        };
        let found = parse("1.1.1.1:1 2.2.2.2:1 3.3.3.3:1 [::4]:1 [::5]:1");
        let tried = parse("[::4]:1 1.1.1.1:1 [::5]:1 2.2.2.2:1 3.3.3.3:1");
        assert_eq!(interleave(found), tried);
    }
}
