//! The smallest guest: every request gets the same answer. It speaks to the
//! bindings alone, with nothing of ours in between, so that it can be copied
//! and so that what it costs is what the host costs.

#[cfg(feature = "p2")]
mod p2;
#[cfg(feature = "p3")]
mod p3;
