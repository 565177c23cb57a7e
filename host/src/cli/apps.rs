//! The apps that a command line asks for: one component for every path, or
//! the house guests.

use crate::builtin;
use crate::component::{ReuseChoice, Source, name_from_path};
use crate::config::{AppConfig, Note};
use crate::outgoing::policy::Policy;
use std::path::PathBuf;

/// What the apps of one command line have in common.
pub struct Apps<'a> {
    pub env: Vec<(String, String)>,
    pub dirs: Vec<(PathBuf, String)>,
    pub reuse: ReuseChoice,
    /// `None` where nothing was asked for.
    pub egress: Option<Policy>,
    pub patterns: &'a [String],
    pub may_set_host: bool,
}

impl Apps<'_> {
    /// One app for every path. It may reach everything, unless told otherwise.
    pub fn single(self, source: Source) -> (Vec<AppConfig>, Vec<Note>) {
        let name = match &source {
            Source::File(path) => name_from_path(path),
            Source::Stdin => "app".into(),
            Source::Builtin(name, _) => (*name).into(),
        };
        let notes = match self.egress {
            None => vec![Note::Text(
                "Outgoing requests may go anywhere; --egress PATTERN (repeatable) limits them"
                    .into(),
            )],
            Some(_) => Vec::new(),
        };
        let app = AppConfig {
            name: name.into(),
            source,
            routes: vec!["/".into()],
            env: self.env,
            dirs: self.dirs,
            egress: self.egress.unwrap_or_else(Policy::open),
            may_set_host: self.may_set_host,
            reuse: self.reuse,
        };
        (vec![app], notes)
    }

    /// The servlet and the remote application that it calls in process.
    pub fn house(self) -> anyhow::Result<(Vec<AppConfig>, Vec<Note>)> {
        let mut reachable = vec!["http://remote.internal".to_owned()];
        let patterns = self.patterns.iter().filter(|pattern| *pattern != "none");
        reachable.extend(patterns.cloned());
        let app = |name: &str, route: &str, egress: Policy| {
            let (name, bytes) = builtin::find(name).expect("the house guests are built in");
            AppConfig {
                name: name.into(),
                source: Source::Builtin(name, bytes),
                routes: vec![route.into()],
                env: self.env.clone(),
                dirs: self.dirs.clone(),
                egress,
                may_set_host: self.may_set_host,
                reuse: self.reuse,
            }
        };
        let apps = vec![
            app("servlet", "/localApp", Policy::parse(&reachable)?),
            app("remote", "/remoteApp", Policy::closed()),
        ];
        let notes = vec![
            Note::Try("/localApp/async?delay=1000&code=200"),
            Note::Try("/localApp/async"),
            Note::Try("/remoteApp/remote?delay=0&code=200"),
        ];
        Ok((apps, notes))
    }
}
