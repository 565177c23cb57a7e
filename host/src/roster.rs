//! Who is served by one instance.
//!
//! The roster is what an instance's worker, its store and its deadline share:
//! from a guest task to the exchange that it serves, and from there to the
//! question whether anybody still needs the instance.

use crate::cpu::Run;
use crate::exchange::Exchange;
use crate::suspension::Suspensions;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;
use wasmtime::component::GuestTaskId;

/// Exchanges that are kept without looking whether they are over.
const REMEMBERED: usize = 32;

#[derive(Default)]
pub struct Roster {
    served: Mutex<Vec<(GuestTaskId, Arc<Exchange>)>>,
    pub suspensions: Arc<Suspensions>,
    pub run: Arc<Run>,
}

/// Whether an instance that is not idle is still needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Some exchange waits for its answer or streams it.
    Live,
    /// Every answer is complete or wanted by nobody; work after an answer may
    /// go on for this long.
    Background(Duration),
    /// Nobody wants anything of it any more.
    None,
}

impl Roster {
    /// Work after an answer that is older than `longest_background` is over
    /// one way or the other, and its exchange is forgotten.
    pub fn add(&self, task: GuestTaskId, exchange: Arc<Exchange>, longest_background: Duration) {
        let mut served = self.lock();
        if served.len() >= REMEMBERED {
            served.retain(|(_, exchange)| {
                exchange
                    .finished_for()
                    .is_none_or(|since| since < longest_background)
            });
        }
        served.push((task, exchange));
    }

    /// The exchange of the oldest known task on a call stack.
    pub fn find(&self, stack: &[GuestTaskId]) -> Option<Arc<Exchange>> {
        let served = self.lock();
        stack.iter().rev().find_map(|task| {
            let (_, exchange) = served.iter().rev().find(|(known, _)| known == task)?;
            Some(Arc::clone(exchange))
        })
    }

    /// The guest has come to rest: everything it was asked is done.
    pub fn clear(&self) {
        self.settle();
        self.lock().clear();
    }

    /// Whoever has no answer by now gets none.
    pub fn settle(&self) {
        for (_, exchange) in self.lock().iter() {
            exchange.settle();
        }
    }

    /// Everybody who is not through with the instance.
    pub fn unfinished(&self) -> Vec<Arc<Exchange>> {
        let served = self.lock();
        let unfinished = served.iter().filter(|(_, e)| !e.is_finished());
        unfinished
            .map(|(_, exchange)| Arc::clone(exchange))
            .collect()
    }

    /// Ends what is done after an answer, outgoing requests included.
    pub fn cancel_finished(&self) {
        for (_, exchange) in self.lock().iter().filter(|(_, e)| e.is_finished()) {
            exchange.cancel();
        }
    }

    /// Whether anybody finished here whose work may still go on.
    pub fn has_finished(&self) -> bool {
        self.lock()
            .iter()
            .any(|(_, exchange)| exchange.is_finished())
    }

    /// Tells what the instance is still needed for; `waker` is woken when the
    /// answer may have changed.
    pub fn need(&self, longest_background: Duration, waker: &Waker) -> Need {
        let mut left = None;
        for (_, exchange) in self.lock().iter() {
            exchange.wake_worker(waker);
            match exchange.finished_for() {
                Some(since) if since < longest_background => {
                    left = left.max(Some(longest_background - since));
                }
                Some(_) => {}
                None if exchange.is_cancelled() => {}
                None => return Need::Live,
            }
        }
        left.map_or(Need::None, Need::Background)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(GuestTaskId, Arc<Exchange>)>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
