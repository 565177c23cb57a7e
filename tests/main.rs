//! Behaviour of the real `host` process, seen from its sockets, its output and its exit code.
//!
//! `harness` starts the process, `wire` speaks HTTP/1.1 to it in raw bytes, `origin` is what it
//! calls. The other modules hold the cases, one subject each, every case on p2 and p3.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[macro_use]
mod harness;
mod origin;
mod wire;

mod answers;
mod command;
mod drain;
mod failures;
mod gone;
mod guest_sees;
mod internal;
mod outgoing;
mod servlet;
