//! How much a guest computes, and in whose time.
//!
//! The engine's clock interrupts whatever guest runs at each tick. The tick is
//! charged to the exchange that the guest works for, and a guest that has
//! computed for more than a tick without a pause gives its thread back. To go
//! on it needs one of a few turns, fewer than there are cores: however many
//! guests compute, a core is left for those that only pass something on. A
//! plain yield would not do that; each of a hundred guests would get its tick
//! before anybody else is looked at.

use crate::exchange::Exchange;
use crate::outcome::{Failure, Kind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wasmtime::UpdateDeadline;

/// A guest that computes is interrupted this often.
pub const TICK: Duration = Duration::from_millis(10);

/// Turns of the whole process.
pub struct Turns(Arc<Semaphore>);

impl Turns {
    pub fn new(cores: usize) -> Self {
        Self(Arc::new(Semaphore::new(cores.saturating_sub(1).max(1))))
    }
}

/// What an instance computes.
pub struct Computing {
    turns: Arc<Semaphore>,
    longest: Duration,
    /// Of the instance's start, which is nobody's exchange.
    starting: u32,
    pub run: Arc<Run>,
}

/// The instance's run from one suspension to the next.
#[derive(Default)]
pub struct Run(Mutex<RunState>);

#[derive(Default)]
struct RunState {
    ticks: u32,
    turn: Option<OwnedSemaphorePermit>,
}

impl Run {
    /// The guest computes no longer; somebody else may.
    pub fn end(&self) {
        *self.lock() = RunState::default();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, RunState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A guest has computed for longer than it may.
#[derive(Debug)]
pub struct TooMuch(Duration);

impl std::fmt::Display for TooMuch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "more than {:?} of computing for one request", self.0)
    }
}

impl std::error::Error for TooMuch {}

impl Computing {
    /// `longest` bounds what is charged to one exchange, in steps of a tick.
    pub fn new(turns: &Turns, longest: Duration, run: Arc<Run>) -> Self {
        Self {
            turns: Arc::clone(&turns.0),
            longest,
            starting: 0,
            run,
        }
    }

    /// The guest has been interrupted while it worked for `exchange`.
    ///
    /// # Errors
    /// [`TooMuch`], which ends the instance.
    pub fn tick(&mut self, exchange: Option<&Exchange>) -> Result<UpdateDeadline, TooMuch> {
        let spent = match exchange {
            Some(exchange) => exchange.charge_tick(),
            None => {
                self.starting += 1;
                self.starting
            }
        };
        if TICK * spent > self.longest {
            let too_much = TooMuch(self.longest);
            if let Some(exchange) = exchange {
                // Of those that share the instance, this one ended it.
                exchange.fail(Arc::new(Failure::new(Kind::Computing, &too_much)));
            }
            return Err(too_much);
        }
        let mut run = self.run.lock();
        run.ticks += 1;
        if run.ticks == 1 {
            // The first tick says only that it came while the guest ran.
            return Ok(UpdateDeadline::Continue(1));
        }
        drop(run);
        Ok(UpdateDeadline::YieldCustom(1, Box::pin(self.next_turn())))
    }

    fn next_turn(&self) -> impl Future<Output = ()> + Send + use<> {
        let (turns, run) = (Arc::clone(&self.turns), Arc::clone(&self.run));
        run.lock().turn = None;
        async move {
            tokio::task::yield_now().await;
            let turn = turns.acquire_owned().await;
            let mut run = run.lock();
            run.turn = turn.ok();
            run.ticks = 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn computing(longest: Duration) -> Computing {
        Computing::new(&Turns::new(2), longest, Arc::default())
    }

    #[test]
    fn computing_is_charged_to_its_exchange_up_to_the_limit() {
        let mut computing = computing(TICK * 3);
        let exchanges = [(); 2].map(|()| Exchange::new("a".into(), 0, 0, false));
        for _ in 0..3 {
            for exchange in &exchanges {
                assert!(computing.tick(Some(exchange)).is_ok());
            }
        }
        assert!(computing.tick(Some(&exchanges[0])).is_err());
        assert!(computing.tick(None).is_ok());
    }

    #[test]
    fn only_a_guest_that_goes_on_has_to_yield() {
        let mut computing = computing(Duration::from_secs(1));
        for _ in 0..2 {
            assert!(matches!(
                computing.tick(None),
                Ok(UpdateDeadline::Continue(1))
            ));
            assert!(matches!(
                computing.tick(None),
                Ok(UpdateDeadline::YieldCustom(1, _))
            ));
            computing.run.end();
        }
    }

    #[tokio::test]
    async fn one_core_is_left_to_those_who_compute_little() {
        let turns = Turns::new(2);
        let [mut first, mut second] =
            [(); 2].map(|()| Computing::new(&turns, Duration::from_secs(1), Arc::default()));
        let spin = async |guest: &mut Computing| {
            for _ in 0..2 {
                if let Ok(UpdateDeadline::YieldCustom(_, turn)) = guest.tick(None) {
                    turn.await;
                }
            }
        };
        spin(&mut first).await;
        let waiting = tokio::time::timeout(TICK, spin(&mut second)).await;
        assert!(waiting.is_err(), "two guests compute on two cores");
        first.run.end();
        spin(&mut second).await;
    }
}
