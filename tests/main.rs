//! Behaviour of the real `host` process, seen from its sockets, its output and its exit code.
//!
//! `harness` starts the process, `wire` speaks HTTP/1.1 to it in raw bytes, `origin` is what it
//! calls, `upstream` the same with TLS and HTTP/2, `dns` what it asks for names. The other modules
//! hold the cases, one subject each, every case on p2 and p3.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod client;
mod dns;
#[macro_use]
mod harness;
mod origin;
mod upstream;
mod wire;

mod answers;
mod command;
mod drain;
mod egress;
mod failures;
mod gone;
mod guest_sees;
mod internal;
mod limits;
mod outgoing;
mod outgoing_bodies;
mod outgoing_errors;
mod outgoing_pool;
mod outgoing_tls;
mod outgoing_wire;
mod route;
mod servlet;
mod smuggling;
mod tls;
