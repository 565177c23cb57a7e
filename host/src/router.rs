//! Which app serves a path: a pure table.
//!
//! A route is a path prefix that matches whole segments; the longest wins.

/// A table from path prefixes to `T`.
#[derive(Clone, Debug)]
pub struct Router<T> {
    /// Longest prefix first, without a trailing slash.
    routes: Vec<(String, T)>,
}

impl<T> Router<T> {
    pub fn new(routes: impl IntoIterator<Item = (String, T)>) -> Self {
        let mut routes: Vec<_> = routes
            .into_iter()
            .map(|(prefix, app)| (prefix.trim_end_matches('/').to_owned(), app))
            .collect();
        routes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        Self { routes }
    }

    pub fn find(&self, path: &str) -> Option<&T> {
        self.routes
            .iter()
            .find(|(prefix, _)| {
                path.strip_prefix(prefix.as_str()).is_some_and(|rest| {
                    rest.is_empty() || rest.starts_with('/') || prefix.is_empty()
                })
            })
            .map(|(_, app)| app)
    }

    /// The prefixes, longest first, for the sentence of a 404.
    pub fn prefixes(&self) -> impl Iterator<Item = &str> {
        self.routes.iter().map(|(prefix, _)| prefix.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_of_whole_segments_wins() {
        let router = Router::new([
            ("/a".into(), "a"),
            ("/a/b/".into(), "ab"),
            ("/c".into(), "c"),
        ]);
        for (path, app) in [
            ("/a", Some("a")),
            ("/a/", Some("a")),
            ("/a/x", Some("a")),
            ("/ab", None),
            ("/a/b", Some("ab")),
            ("/a/b/c", Some("ab")),
            ("/a/bc", Some("a")),
            ("/c/a", Some("c")),
            ("/", None),
            ("*", None),
        ] {
            assert_eq!(router.find(path).copied(), app, "{path}");
        }
    }

    #[test]
    fn an_empty_prefix_takes_everything_even_an_asterisk() {
        let router = Router::new([("/".into(), 1)]);
        for path in ["/", "/a", "*"] {
            assert_eq!(router.find(path), Some(&1), "{path}");
        }
    }
}
