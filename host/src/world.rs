//! The two versions of `wasi:http`: the one place where they differ in name.

use std::fmt;

/// The handler that a guest exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum World {
    /// `wasi:http/incoming-handler@0.2`: one request at a time.
    P2,
    /// `wasi:http/handler@0.3`: several at once, where the host wants it.
    P3,
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            World::P2 => "wasi:http 0.2",
            World::P3 => "wasi:http 0.3",
        })
    }
}
