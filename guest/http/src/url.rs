//! Addresses of requests: the parts of a URL that wasi:http wants separately,
//! and the parameters in a query.

use crate::Scheme;

/// An absolute `http` or `https` URL.
#[derive(Clone, Debug)]
pub struct Url {
    pub scheme: Scheme,
    pub authority: String,
    /// Starts with a slash, or is empty.
    pub path_with_query: String,
}

impl Url {
    /// `None` where `text` is no absolute HTTP URL. A fragment is cut off; what
    /// the authority may contain is for the host to judge.
    pub fn parse(text: &str) -> Option<Url> {
        let (scheme, rest) = text.split_once("://")?;
        let scheme = match scheme {
            _ if scheme.eq_ignore_ascii_case("http") => Scheme::Http,
            _ if scheme.eq_ignore_ascii_case("https") => Scheme::Https,
            _ => return None,
        };
        let rest = rest.split('#').next()?;
        let (authority, tail) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if authority.is_empty() || text.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return None;
        }
        let path_with_query = match tail.starts_with('?') {
            true => format!("/{tail}"),
            false => tail.into(),
        };
        Some(Url {
            scheme,
            authority: authority.into(),
            path_with_query,
        })
    }
}

/// The decoded parameters of a query, in the order they were sent.
#[derive(Debug)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Splits a request's target into its path and its parameters.
    pub fn split(target: &str) -> (&str, Query) {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let decoded = pairs.map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        });
        (path, Query(decoded.collect()))
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|pair| pair.0 == name)
            .map(|pair| pair.1.as_str())
    }

    /// Every value of a parameter that may be given more than once.
    pub fn all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |pair| pair.0 == name)
            .map(|pair| pair.1.as_str())
    }
}

/// Undoes form encoding; what is no valid escape stays as it is.
fn decode(text: &str) -> String {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, tail @ ..] = rest {
        rest = tail;
        decoded.push(match (byte, escaped(tail)) {
            (b'%', Some(escaped)) => {
                rest = &tail[2..];
                escaped
            }
            (b'+', _) => b' ',
            (byte, _) => *byte,
        });
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// The byte that two hexadecimal digits stand for.
fn escaped(digits: &[u8]) -> Option<u8> {
    let digits = str::from_utf8(digits.get(..2)?).ok()?;
    u8::from_str_radix(digits, 16)
        .ok()
        .filter(|_| !digits.starts_with('+'))
}
