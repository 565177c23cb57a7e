//! Apps and the versions of their components: load, compile, check, publish.
//!
//! A request takes the version that is current when it arrives and keeps it to
//! the end of its body.

use crate::instance::{Blueprint, Instances, Reuse, Workers};
use crate::wasi::{Ctx, Rights};
use crate::world::World;
use anyhow::{Context as _, bail, ensure};
use arc_swap::ArcSwap;
use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, Linker};
use wasmtime::{Engine, Precompiled};
use wasmtime_wasi_http::handler::ProxyPre;
use wasmtime_wasi_http::{p2, p3};

/// Where a component comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    File(PathBuf),
    Stdin,
    /// One of the house guests.
    Builtin(&'static str, &'static [u8]),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::File(path) => path.display().fmt(f),
            Source::Stdin => f.write_str("standard input"),
            Source::Builtin(name, _) => write!(f, "builtin:{name}"),
        }
    }
}

impl Source {
    /// # Errors
    /// The file cannot be read.
    pub fn read(&self) -> anyhow::Result<Vec<u8>> {
        match self {
            Source::File(path) => {
                std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
            }
            Source::Stdin => {
                let mut bytes = Vec::new();
                std::io::stdin()
                    .read_to_end(&mut bytes)
                    .context("cannot read standard input")?;
                Ok(bytes)
            }
            Source::Builtin(_, bytes) => Ok(bytes.to_vec()),
        }
    }
}

/// The handler that a component exports. Of the two, 0.3 where it has both, as
/// in `wasmtime serve`.
pub fn world_of(engine: &Engine, component: &Component) -> Option<World> {
    let ty = component.component_type();
    let exports = |name: &str| {
        ty.exports(engine).any(|(export, item)| {
            export.starts_with(name) && matches!(item.ty, ComponentItem::ComponentInstance(_))
        })
    };
    if exports("wasi:http/handler@0.3.") && !exports("wasi:http/handler@0.3.0-") {
        Some(World::P3)
    } else if exports("wasi:http/incoming-handler@0.2.") {
        Some(World::P2)
    } else {
        None
    }
}

/// One compiled and linked component.
pub struct Version {
    pub world: World,
    pub instances: Instances,
}

/// How the instances of an app are used, where its world leaves a choice.
#[derive(Clone, Copy, Debug)]
pub struct ReuseChoice {
    /// Default 1 for wasi:http 0.2, 128 for 0.3.
    pub total: Option<usize>,
    /// Default 16 for wasi:http 0.3; 0.2 always serves one at a time.
    pub concurrent: Option<usize>,
    /// Default 1 s.
    pub idle: Duration,
}

impl ReuseChoice {
    fn for_world(self, world: World) -> Reuse {
        let (total, concurrent) = match world {
            World::P2 => (1, 1),
            World::P3 => (128, self.concurrent.unwrap_or(16)),
        };
        Reuse {
            total: self.total.unwrap_or(total),
            concurrent,
            idle: self.idle,
        }
    }
}

/// What turns bytes into versions: one for the process.
pub struct Loader {
    pub engine: Engine,
    pub linker: Linker<Ctx>,
    pub workers: Arc<Workers>,
    pub allow_precompiled: bool,
    pub background: Duration,
}

impl Loader {
    /// # Errors
    /// Anything that is wrong with the component, in a sentence that names it.
    pub async fn load(
        &self,
        app: &Arc<str>,
        source: &Source,
        rights: Rights,
        reuse: ReuseChoice,
    ) -> anyhow::Result<Version> {
        let version = self.link(app, source, rights, reuse);
        let version = version.with_context(|| format!("cannot serve {source}"))?;
        version
            .instances
            .try_one()
            .await
            .map_err(anyhow::Error::from)
            .with_context(|| format!("cannot start an instance of {source}"))?;
        Ok(version)
    }

    fn link(
        &self,
        app: &Arc<str>,
        source: &Source,
        rights: Rights,
        reuse: ReuseChoice,
    ) -> anyhow::Result<Version> {
        let component = compile(&self.engine, &source.read()?, self.allow_precompiled)?;
        let world = world_of(&self.engine, &component).with_context(|| {
            format!(
                "it exports neither `wasi:http/handler@0.3` nor `wasi:http/incoming-handler@0.2`, \
                 but {}",
                exports(&self.engine, &component)
            )
        })?;
        let pre = self
            .linker
            .instantiate_pre(&component)
            .map_err(|error| missing_import(&error))?;
        let pre = match world {
            World::P3 => ProxyPre::P3(p3::bindings::ServicePre::new(pre)?),
            World::P2 => ProxyPre::P2(p2::bindings::ProxyPre::new(pre)?),
        };
        let instances = Instances::new(Blueprint {
            app: Arc::clone(app),
            engine: self.engine.clone(),
            pre,
            rights,
            reuse: reuse.for_world(world),
            background: self.background,
            workers: Arc::clone(&self.workers),
        });
        Ok(Version { world, instances })
    }
}

/// Bytes of a component, as text or binary, or native code of this engine.
///
/// # Errors
/// The bytes are not a component, or one that does not validate.
pub fn compile(
    engine: &Engine,
    bytes: &[u8],
    allow_precompiled: bool,
) -> anyhow::Result<Component> {
    match Engine::detect_precompiled(bytes) {
        Some(Precompiled::Component) if allow_precompiled => {
            return load_precompiled(engine, bytes);
        }
        Some(Precompiled::Component) => bail!(
            "it is native code (.cwasm), which runs outside of the sandbox if it was tampered \
             with; --allow-precompiled takes it from a source that you trust"
        ),
        Some(Precompiled::Module) => bail!("it is a precompiled core module, not a component"),
        None => {}
    }
    ensure!(
        !is_core_module(bytes) && !bytes.trim_ascii_start().starts_with(b"(module"),
        "it is a core module, not a component; build it with `--target \
         wasm32-wasip2`, or make one of it with `wasm-tools component new`"
    );
    let is_text = bytes.trim_ascii_start().starts_with(b"(");
    ensure!(
        bytes.starts_with(b"\0asm") || is_text,
        "it is no WebAssembly component: it {}",
        if bytes.is_empty() {
            "is empty".to_owned()
        } else {
            format!(
                "begins with \"{}\"",
                bytes[..bytes.len().min(8)].escape_ascii()
            )
        }
    );
    Component::new(engine, bytes)
        .map_err(anyhow::Error::from)
        .context("it is damaged or uses what this engine does not support")
}

/// The layer field of the preamble: 0 for modules, 1 for components.
fn is_core_module(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\0asm") && bytes.get(6..8) == Some(&[0, 0])
}

#[expect(unsafe_code, reason = "native code cannot be checked, only trusted")]
fn load_precompiled(engine: &Engine, bytes: &[u8]) -> anyhow::Result<Component> {
    // SAFETY: the operator vouches for the file with --allow-precompiled.
    unsafe { Component::deserialize(engine, bytes) }
        .map_err(anyhow::Error::from)
        .context("its native code does not fit this host; compile it again with `host compile`")
}

fn exports(engine: &Engine, component: &Component) -> String {
    let ty = component.component_type();
    let names: Vec<_> = ty
        .exports(engine)
        .map(|(name, _)| format!("`{name}`"))
        .collect();
    if names.is_empty() {
        "nothing".into()
    } else {
        names.join(", ")
    }
}

fn missing_import(error: &wasmtime::Error) -> anyhow::Error {
    let reason = format!("{error:#}");
    let way_out = if reason.contains("wasi:config") {
        "; `-S config` links wasi:config"
    } else if reason.contains("wasi:keyvalue") {
        "; `-S keyvalue` links wasi:keyvalue"
    } else if reason.contains("wasi:") {
        "; this host links wasi 0.2 and 0.3.0"
    } else {
        "; a component that exports it can be composed in with `wac plug`"
    };
    anyhow::anyhow!("an import cannot be satisfied: {reason}{way_out}")
}

/// A named application: what a route leads to.
pub struct App {
    pub name: Arc<str>,
    current: ArcSwap<Version>,
}

impl App {
    pub fn new(name: Arc<str>, version: Version) -> Arc<Self> {
        Arc::new(Self {
            name,
            current: ArcSwap::from_pointee(version),
        })
    }

    /// The version that a request which arrives now is served by.
    pub fn current(&self) -> Arc<Version> {
        self.current.load_full()
    }
}

/// The name of the app in a file: its stem, as a label of a host name.
pub fn name_from_path(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let mut name: String = stem
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_lowercase()
            } else {
                '-'
            }
        })
        .collect();
    name.truncate(63);
    let name = name.trim_matches('-');
    if name.is_empty() {
        "app".into()
    } else {
        name.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_app_is_named_after_its_file_as_a_host_name_allows() {
        for (path, name) in [
            ("/a/guest.wasm", "guest"),
            ("My_App.v2.wasm", "my-app-v2"),
            ("-x-.wasm", "x"),
            ("/", "app"),
            ("äö.wasm", "app"),
        ] {
            assert_eq!(name_from_path(Path::new(path)), name, "{path}");
        }
    }

    #[test]
    fn modules_and_components_differ_in_the_layer_field() {
        assert!(is_core_module(b"\0asm\x01\0\0\0"));
        assert!(!is_core_module(b"\0asm\x0d\0\x01\0"));
        assert!(!is_core_module(b"\0asm"));
    }
}
