//! The upstream connections of one app: who may open one, who gets an idle
//! one, who waits.
//!
//! Connections are counted from the decision to open one until its driver has
//! ended, per destination and in total. Over a limit a request waits for its
//! turn, first come first served. The connection used last is taken first, so
//! that the rest can age and go. An HTTP/2 connection is shared.

use super::RequestBody;
use super::destination::Destination;
use super::request::Sending;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// How many connections there may be, and for how long without use.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub per_destination: usize,
    pub total: usize,
    pub idle: usize,
    pub longest_idle: Duration,
}

pub struct Pool<B: RequestBody> {
    state: Mutex<State<B>>,
    bounds: Bounds,
}

struct State<B: RequestBody> {
    destinations: HashMap<Destination, Entry<B>>,
    open: usize,
    idle: usize,
}

struct Entry<B: RequestBody> {
    idle: VecDeque<(Instant, http1::SendRequest<Sending<B>>)>,
    shared: Option<http2::SendRequest<Sending<B>>>,
    open: usize,
    /// Of these, the ones that are not there yet.
    opening: usize,
    /// It speaks HTTP/2: one connection is enough, also while it is made.
    one_is_enough: bool,
    /// Told that it is worth to try again.
    waiting: VecDeque<oneshot::Sender<Ticket<B>>>,
}

impl<B: RequestBody> Default for Entry<B> {
    fn default() -> Self {
        Self {
            idle: VecDeque::new(),
            shared: None,
            open: 0,
            opening: 0,
            one_is_enough: false,
            waiting: VecDeque::new(),
        }
    }
}

/// What a request is sent with.
pub enum Sender<B: RequestBody> {
    Http1(http1::SendRequest<Sending<B>>),
    Http2(http2::SendRequest<Sending<B>>),
}

/// What a request gets when it asks for a connection.
pub enum Turn<B: RequestBody> {
    /// An idle or shared one.
    Reuse(Lease<B>),
    /// The right to open one.
    Open(Slot<B>),
    /// A limit is reached; it is worth to ask again when this resolves.
    Wait(oneshot::Receiver<Ticket<B>>, Full),
}

/// The limit that is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    Destination,
    Total,
    /// None, but somebody is opening a connection that all can share.
    Opening,
}

/// One's turn. Whoever has left meanwhile and does not [`take`](Self::take) it
/// gives it to the next.
pub struct Ticket<B: RequestBody>(Option<(Arc<Pool<B>>, Destination)>);

impl<B: RequestBody> Ticket<B> {
    pub fn take(mut self) {
        self.0 = None;
    }
}

impl<B: RequestBody> Drop for Ticket<B> {
    fn drop(&mut self) {
        if let Some((pool, destination)) = self.0.take() {
            pool.next(&destination);
        }
    }
}

impl<B: RequestBody> Pool<B> {
    pub fn new(bounds: Bounds) -> Arc<Self> {
        let pool = Arc::new(Self {
            state: Mutex::new(State {
                destinations: HashMap::new(),
                open: 0,
                idle: 0,
            }),
            bounds,
        });
        tokio::spawn(reap(Arc::downgrade(&pool), bounds.longest_idle));
        pool
    }

    /// Without `reuse` whatever is idle there is given up: one of them has
    /// turned out to be dead.
    /// `http2` says that the destination is known to speak it.
    pub fn ask(self: &Arc<Self>, destination: &Destination, reuse: bool, http2: bool) -> Turn<B> {
        let mut state = self.lock();
        let state = &mut *state;
        let entry = match state.destinations.get_mut(destination) {
            Some(entry) => entry,
            None => state.destinations.entry(destination.clone()).or_default(),
        };
        if !reuse {
            state.idle -= entry.idle.len();
            entry.idle.clear();
        }
        _ = entry.shared.take_if(|shared| !reuse || shared.is_closed());
        if let Some(shared) = &entry.shared {
            return Turn::Reuse(self.lease(destination, Sender::Http2(shared.clone()), true));
        }
        while let Some((since, sender)) = entry.idle.pop_back() {
            state.idle -= 1;
            if since.elapsed() < self.bounds.longest_idle && sender.is_ready() {
                return Turn::Reuse(self.lease(destination, Sender::Http1(sender), true));
            }
        }
        entry.one_is_enough |= http2;
        let opening = entry.one_is_enough && entry.opening > 0;
        let has_room = entry.open < self.bounds.per_destination && state.open < self.bounds.total;
        if has_room && !opening {
            entry.open += 1;
            entry.opening += 1;
            state.open += 1;
            return Turn::Open(Slot {
                pool: Arc::clone(self),
                destination: destination.clone(),
                is_opening: true,
            });
        }
        let full = if opening {
            Full::Opening
        } else if entry.open < self.bounds.per_destination {
            Full::Total
        } else {
            Full::Destination
        };
        let (turn, wait) = oneshot::channel();
        entry.waiting.push_back(turn);
        if full == Full::Total {
            state.drop_oldest_idle();
        }
        Turn::Wait(wait, full)
    }

    /// The next one who waits for `destination` may try again, or who waits
    /// for another, if it was the total that held it up.
    fn next(self: &Arc<Self>, destination: &Destination) {
        let mut state = self.lock();
        self.next_of(&mut state, destination);
    }

    fn next_of(self: &Arc<Self>, state: &mut State<B>, destination: &Destination) {
        if let Some(entry) = state.destinations.get_mut(destination)
            && self.call_next(destination, entry)
        {
            return;
        }
        let mut others = state.destinations.iter_mut();
        _ = others.any(|(destination, entry)| self.call_next(destination, entry));
    }

    /// Whether there was anybody.
    fn call_next(self: &Arc<Self>, destination: &Destination, entry: &mut Entry<B>) -> bool {
        while let Some(turn) = entry.waiting.pop_front() {
            let ticket = Ticket(Some((Arc::clone(self), destination.clone())));
            match turn.send(ticket) {
                Ok(()) => return true,
                // It must not call for the next one, which is done here.
                Err(unwanted) => unwanted.take(),
            }
        }
        false
    }

    /// A connection that was just opened.
    pub fn opened(self: &Arc<Self>, destination: &Destination, sender: Sender<B>) -> Lease<B> {
        if let Sender::Http2(shared) = &sender {
            let mut state = self.lock();
            if let Some(entry) = state.destinations.get_mut(destination) {
                entry.shared = Some(shared.clone());
                entry.one_is_enough = true;
                // There is room for all of them now.
                while self.call_next(destination, entry) {}
            }
        }
        self.lease(destination, sender, false)
    }

    fn lease(
        self: &Arc<Self>,
        destination: &Destination,
        sender: Sender<B>,
        reused: bool,
    ) -> Lease<B> {
        Lease {
            pool: Arc::clone(self),
            destination: destination.clone(),
            sender,
            reused,
        }
    }

    fn keep(self: &Arc<Self>, destination: &Destination, sender: http1::SendRequest<Sending<B>>) {
        let mut state = self.lock();
        let state = &mut *state;
        let Some(entry) = state.destinations.get_mut(destination) else {
            return;
        };
        if state.idle < self.bounds.idle || !entry.waiting.is_empty() {
            state.idle += 1;
            entry.idle.push_back((Instant::now(), sender));
        }
        self.next_of(state, destination);
    }

    fn lock(&self) -> MutexGuard<'_, State<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: RequestBody> State<B> {
    /// Makes room for another destination.
    fn drop_oldest_idle(&mut self) {
        let entries = self.destinations.values_mut();
        let oldest = entries
            .filter(|entry| !entry.idle.is_empty())
            .min_by_key(|entry| entry.idle.front().map(|(since, _)| *since));
        if let Some(entry) = oldest {
            entry.idle.pop_front();
            self.idle -= 1;
        }
    }
}

impl<B: RequestBody> Entry<B> {
    fn is_unused(&self) -> bool {
        self.open == 0 && self.idle.is_empty() && self.waiting.is_empty()
    }
}

/// Drops what has been idle too long or was closed by its upstream. Ends with
/// the pool.
async fn reap<B: RequestBody>(pool: Weak<Pool<B>>, longest: Duration) {
    let period = (longest / 4).max(Duration::from_millis(100));
    loop {
        tokio::time::sleep(period).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut state = pool.lock();
        let mut idle = 0;
        state.destinations.retain(|_, entry| {
            entry
                .idle
                .retain(|(since, sender)| since.elapsed() < longest && !sender.is_closed());
            idle += entry.idle.len();
            entry.waiting.retain(|turn| !turn.is_closed());
            !entry.is_unused()
        });
        state.idle = idle;
    }
}

/// One of the connections that there may be. Lives as long as the connection.
pub struct Slot<B: RequestBody> {
    pool: Arc<Pool<B>>,
    destination: Destination,
    is_opening: bool,
}

impl<B: RequestBody> Slot<B> {
    /// The connection is there.
    pub fn opened(&mut self) {
        self.is_opening = false;
        let mut state = self.pool.lock();
        if let Some(entry) = state.destinations.get_mut(&self.destination) {
            entry.opening -= 1;
        }
    }
}

impl<B: RequestBody> Drop for Slot<B> {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        state.open -= 1;
        if let Some(entry) = state.destinations.get_mut(&self.destination) {
            entry.open -= 1;
            entry.opening -= usize::from(self.is_opening);
        }
        self.pool.next_of(&mut state, &self.destination);
    }
}

/// One connection in use, or one's part of a shared one.
pub struct Lease<B: RequestBody> {
    pool: Arc<Pool<B>>,
    destination: Destination,
    sender: Sender<B>,
    reused: bool,
}

impl<B: RequestBody> Lease<B> {
    /// Sends a request. An error has the request with it where nothing of it
    /// has left.
    pub async fn send(
        &mut self,
        request: http::Request<Sending<B>>,
    ) -> Result<http::Response<Incoming>, (hyper::Error, Option<http::Request<Sending<B>>>)> {
        let response = match &mut self.sender {
            Sender::Http1(sender) => sender.try_send_request(request).await,
            Sender::Http2(sender) => sender.try_send_request(request).await,
        };
        response.map_err(|mut error| {
            let unsent = error.take_message();
            (error.into_error(), unsent)
        })
    }

    pub fn is_reused(&self) -> bool {
        self.reused
    }

    pub fn is_http2(&self) -> bool {
        matches!(self.sender, Sender::Http2(_))
    }

    /// The response has been read to its end: the connection can carry the
    /// next request, as soon as the request's own body has gone.
    pub fn release(self) {
        let Self {
            pool,
            destination,
            sender,
            ..
        } = self;
        let Sender::Http1(mut sender) = sender else {
            return;
        };
        if sender.is_ready() {
            pool.keep(&destination, sender);
            return;
        }
        // Ends when the connection is ready or closed, and the connection ends
        // when its peer or the request's body does.
        tokio::spawn(async move {
            if sender.ready().await.is_ok() {
                pool.keep(&destination, sender);
            }
        });
    }
}
