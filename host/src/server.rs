//! The listener: an accept loop that nothing ends but a drain.
//!
//! A connection's permit is taken before the connection is accepted, so beyond
//! the limit further ones wait in the kernel's backlog, and is freed exactly
//! when its task ends.

use crate::connection::Connections;
use anyhow::Context as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long to wait after an accept that failed for want of file descriptors
/// or memory: the connections that hold them need time to end.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// # Errors
/// The address is in use, or not one of this machine.
pub fn bind(address: SocketAddr, backlog: u32) -> anyhow::Result<TcpListener> {
    let bind = || {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        // Lets a host that was just ended be started again on the same port.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(backlog)
    };
    bind().with_context(|| format!("cannot listen on {address}"))
}

pub struct Server {
    pub listener: TcpListener,
    pub connections: Arc<Connections>,
    pub permits: Arc<Semaphore>,
    pub tasks: TaskTracker,
}

impl Server {
    /// Accepts until `drain`, and then what the kernel has accepted already.
    pub async fn run(self, drain: CancellationToken) {
        loop {
            let permit = tokio::select! {
                permit = Arc::clone(&self.permits).acquire_owned() => {
                    permit.expect("the semaphore is never closed")
                }
                () = drain.cancelled() => break,
            };
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, peer)) => self.spawn(stream, peer, permit),
                    Err(error) => pause(&error).await,
                },
                () = drain.cancelled() => break,
            }
        }
        self.empty_backlog();
    }

    fn empty_backlog(&self) {
        use futures::FutureExt as _;
        while let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned()
            && let Some(Ok((stream, peer))) = self.listener.accept().now_or_never()
        {
            self.spawn(stream, peer, permit);
        }
    }

    fn spawn(&self, stream: TcpStream, peer: SocketAddr, permit: OwnedSemaphorePermit) {
        // A small answer must not wait for the acknowledgement of the one
        // before. An error means that the peer has gone, which hyper will see.
        _ = stream.set_nodelay(true);
        let connections = Arc::clone(&self.connections);
        self.tasks.spawn(async move {
            connections.serve(stream, peer).await;
            drop(permit);
        });
    }
}

/// One connection's errors are its own; those of the process need patience.
async fn pause(error: &std::io::Error) {
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted => {}
        _ => {
            tracing::error!("cannot accept connections, trying on: {error}");
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
}
