//! Loops of requests through hosts like this one, found by `CDN-Loop`,
//! RFC 8586.
//!
//! Each pass adds our name to the header. A guest that makes a request of its
//! own, and does not forward the header of the one that it answers, must not
//! hide a loop by that: what the answered request had is counted as well.

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

const CDN_LOOP: HeaderName = HeaderName::from_static("cdn-loop");

/// Our name in the header.
const CDN_ID: &str = "host";

/// How often a request may pass through here.
pub const MAX_PASSES: u8 = 8;

/// How often a request has passed already.
pub fn passes(headers: &HeaderMap) -> u8 {
    let ours = headers
        .get_all(CDN_LOOP)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter(|info| is_ours(info));
    ours.take(usize::from(u8::MAX)).count() as u8
}

/// A member of the header is an identifier, perhaps with parameters.
fn is_ours(info: &str) -> bool {
    let id = info.split(';').next().unwrap_or_default();
    id.trim().eq_ignore_ascii_case(CDN_ID)
}

/// Counts one more pass of a request that a guest makes while it answers one
/// with `answered` passes. `None` if that is one too many.
pub fn pass(headers: &mut HeaderMap, answered: u8) -> Option<()> {
    let known = passes(headers);
    if known.max(answered) >= MAX_PASSES {
        return None;
    }
    for _ in known..=known.max(answered) {
        headers.append(CDN_LOOP, HeaderValue::from_static(CDN_ID));
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ninth_pass_is_refused_whether_or_not_the_guest_forwards_the_header() {
        let mut forwarded = HeaderMap::new();
        forwarded.append(CDN_LOOP, HeaderValue::from_static("other, host-2; a=host"));
        for number in 1..=MAX_PASSES {
            assert_eq!(pass(&mut forwarded, number - 1), Some(()), "{number}");
            assert_eq!(passes(&forwarded), number);

            let mut own = HeaderMap::new();
            assert_eq!(pass(&mut own, number - 1), Some(()), "{number}");
            assert_eq!(passes(&own), number);
        }
        assert_eq!(pass(&mut forwarded, 0), None);
        assert_eq!(pass(&mut HeaderMap::new(), MAX_PASSES), None);
    }

    #[test]
    fn names_compare_without_case_and_lists_may_be_in_one_line_or_many() {
        let mut headers = HeaderMap::new();
        headers.append(CDN_LOOP, HeaderValue::from_static("a, HOST ,host;v=1"));
        headers.append(CDN_LOOP, HeaderValue::from_static("host"));
        assert_eq!(passes(&headers), 3);
    }
}
