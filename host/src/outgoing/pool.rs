//! Idle upstream connections of one app, by destination.
//!
//! The connection used last is taken first, so that the rest can age and go.
//! What is kept is bounded in number and time; what is in use is counted by
//! nobody here.

use super::RequestBody;
use super::destination::Destination;
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::time::Instant;

pub struct Pool<B> {
    idle: Mutex<Idle<B>>,
    longest: Duration,
    most: usize,
}

struct Idle<B> {
    by_destination: HashMap<Destination, Vec<(Instant, SendRequest<B>)>>,
    count: usize,
}

impl<B: RequestBody> Pool<B> {
    /// Keeps at most `most` connections, each at most for `longest`.
    pub fn new(longest: Duration, most: usize) -> Arc<Self> {
        let pool = Arc::new(Self {
            idle: Mutex::new(Idle {
                by_destination: HashMap::new(),
                count: 0,
            }),
            longest,
            most,
        });
        tokio::spawn(reap(Arc::downgrade(&pool), longest));
        pool
    }

    /// An idle connection to `destination` that is still open.
    pub fn take(self: &Arc<Self>, destination: &Destination) -> Option<Lease<B>> {
        let mut idle = self.lock();
        let Idle {
            by_destination,
            count,
        } = &mut *idle;
        let connections = by_destination.get_mut(destination)?;
        while let Some((since, sender)) = connections.pop() {
            *count -= 1;
            if since.elapsed() < self.longest && sender.is_ready() {
                return Some(Lease {
                    pool: Arc::clone(self),
                    destination: destination.clone(),
                    sender: Some(sender),
                    reused: true,
                });
            }
        }
        by_destination.remove(destination);
        None
    }

    /// A fresh connection, which will come here when it is idle.
    pub fn lease(self: &Arc<Self>, destination: &Destination, sender: SendRequest<B>) -> Lease<B> {
        Lease {
            pool: Arc::clone(self),
            destination: destination.clone(),
            sender: Some(sender),
            reused: false,
        }
    }

    fn keep(&self, destination: Destination, sender: SendRequest<B>) {
        let mut idle = self.lock();
        if idle.count < self.most {
            idle.count += 1;
            idle.by_destination
                .entry(destination)
                .or_default()
                .push((Instant::now(), sender));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Idle<B>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Drops what has been idle too long or was closed by its upstream. Ends with
/// the pool.
async fn reap<B: RequestBody>(pool: Weak<Pool<B>>, longest: Duration) {
    let period = (longest / 4).max(Duration::from_millis(100));
    loop {
        tokio::time::sleep(period).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut idle = pool.lock();
        idle.by_destination.retain(|_, connections| {
            connections.retain(|(since, sender)| since.elapsed() < longest && !sender.is_closed());
            !connections.is_empty()
        });
        idle.count = idle.by_destination.values().map(Vec::len).sum();
    }
}

/// One connection in use.
pub struct Lease<B> {
    pool: Arc<Pool<B>>,
    destination: Destination,
    sender: Option<SendRequest<B>>,
    reused: bool,
}

impl<B: RequestBody> Lease<B> {
    /// Sends a request. An error has the request with it where nothing of it
    /// has left.
    pub async fn send(
        &mut self,
        request: http::Request<B>,
    ) -> Result<http::Response<Incoming>, (hyper::Error, Option<http::Request<B>>)> {
        let sender = self
            .sender
            .as_mut()
            .expect("a lease holds its connection until released");
        sender.try_send_request(request).await.map_err(|mut error| {
            let unsent = error.take_message();
            (error.into_error(), unsent)
        })
    }

    pub fn is_reused(&self) -> bool {
        self.reused
    }

    /// The response has been read to its end: the connection can carry the
    /// next request, as soon as the request's own body has gone.
    pub fn release(mut self) {
        let Some(mut sender) = self.sender.take() else {
            return;
        };
        if sender.is_ready() {
            self.pool.keep(self.destination, sender);
            return;
        }
        // Ends when the connection is ready or closed, and the connection ends
        // when its peer or the request's body does.
        tokio::spawn(async move {
            if sender.ready().await.is_ok() {
                self.pool.keep(self.destination, sender);
            }
        });
    }
}
