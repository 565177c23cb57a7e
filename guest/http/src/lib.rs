//! HTTP as the guests see it: one request, one response, bodies that stream.
//!
//! wasi:http 0.2 and 0.3 differ in how a guest waits and in who moves the
//! bytes, not in what a request is. Everything that differs is in `p2` and
//! `p3`, one of which is compiled; a guest is written once, as a function from
//! [`Request`] to [`Response`], and becomes a component by [`serve!`].
//!
//! ```text
//! async fn answer(request: Request) -> Result<Response, ErrorCode> { … }
//! guest_http::serve!("house:guests/servlet", answer);
//! ```
//!
//! A body that is only passed on ([`Body::Relay`]) never enters the guest's
//! memory: 0.2 splices it, 0.3 hands the stream over.

mod error;
mod message;
mod url;

#[cfg(feature = "p2")]
mod p2;
#[cfg(feature = "p3")]
mod p3;

#[cfg(feature = "p2")]
use p2 as wasi_http;
#[cfg(feature = "p3")]
use p3 as wasi_http;

pub use error::{describe, name};
pub use message::{
    Body, Outgoing, Response, Timeouts, check, end_to_end, method, method_name, values,
};
pub use url::{Query, Url};
pub use wasi_http::http::{ErrorCode, HeaderError, Method, Scheme};
pub use wasi_http::wasi::random::random::get_random_u64 as random;
pub use wasi_http::{Incoming, IncomingBody, Request, Writer, header_error, send, sleep, spawn};

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

/// What [`serve!`] needs inside the guest that calls it.
#[doc(hidden)]
pub use {
    wasi_http::{serve, wasi},
    wit_bindgen,
};

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

/// Names and values in the order they were sent; names in lower case.
pub type Fields = Vec<(String, Vec<u8>)>;

/// Lets `first` run for as long as `second` takes, at most: dropped, it is
/// cancelled.
pub async fn race<T>(first: impl Future<Output = T>, second: impl Future) -> Option<T> {
    let mut first = pin!(first);
    let mut second = pin!(second);
    poll_fn(|context| match first.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => second.as_mut().poll(context).map(|_| None),
    })
    .await
}

/// Makes a component of an `async fn` from [`Request`] to a `Result` of
/// [`Response`], with the imports and the export of a world in `wit/`.
#[cfg(feature = "p3")]
#[macro_export]
macro_rules! serve {
    ($world:literal, $answer:path) => {
        $crate::bindings!($world, {
            "wasi:clocks/types@0.3.0": ::guest_http::wasi::clocks::types,
            "wasi:http/types@0.3.0": ::guest_http::wasi::http::types,
        });

        struct Guest;

        impl exports::wasi::http::handler::Guest for Guest {
            async fn handle(
                request: $crate::wasi::http::types::Request,
            ) -> Result<$crate::wasi::http::types::Response, $crate::ErrorCode> {
                $crate::serve(request, $answer).await
            }
        }

        export!(Guest);
    };
}

/// Makes a component of an `async fn` from [`Request`] to a `Result` of
/// [`Response`], with the imports and the export of a world in `wit/`.
#[cfg(feature = "p2")]
#[macro_export]
macro_rules! serve {
    ($world:literal, $answer:path) => {
        $crate::bindings!($world, {
            "wasi:clocks/monotonic-clock@0.2.12": ::guest_http::wasi::clocks::monotonic_clock,
            "wasi:http/types@0.2.12": ::guest_http::wasi::http::types,
            "wasi:io/error@0.2.12": ::guest_http::wasi::io::error,
            "wasi:io/poll@0.2.12": ::guest_http::wasi::io::poll,
            "wasi:io/streams@0.2.12": ::guest_http::wasi::io::streams,
        });

        struct Guest;

        impl exports::wasi::http::incoming_handler::Guest for Guest {
            fn handle(
                request: $crate::wasi::http::types::IncomingRequest,
                outparam: $crate::wasi::http::types::ResponseOutparam,
            ) {
                $crate::serve(request, outparam, $answer)
            }
        }

        export!(Guest);
    };
}
