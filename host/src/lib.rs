//! An edge server for WebAssembly HTTP components (`wasi:http` 0.2 and 0.3).
//!
//! # Life of a request
//!
//! ```text
//! socket → connection → admission → route → version → instance → guest → outgoing client → answer
//! ```
//!
//! A guest that waits for an upstream is *suspended*: its stack stays in the
//! instance, no thread is held, and the response resumes it. Data flows one
//! way; the modules below stand in the order in which a request meets them.

pub mod cli;
pub mod config;
pub mod host;
pub mod inspect;

mod server;
mod socket;
mod tls;
mod watch;

mod connection;
mod received;

mod dispatch;

mod admission;
mod router;

mod builtin;
mod component;

mod cpu;
mod instance;
mod roster;
mod suspension;

mod guest_log;
mod wasi;

mod egress;
mod outgoing;

mod answer;

mod engine;
mod exchange;
mod flags;
mod headers;
mod limits;
mod outcome;
mod world;
