//! The wasmtime engine: one for the process, with pools sized from the limits,
//! a cache of compiled code and a clock. Nothing here is done per request.

use crate::cpu::TICK;
use crate::flags::{Flags, PoolSizes};
use crate::limits::Limits;
use anyhow::Context as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use wasmtime::{Cache, CacheConfig, Enabled, Engine};

/// Core instances that a component of Rust's for wasi 0.2 consists of: main,
/// shim, fixup. One more for components composed of several.
const CORE_INSTANCES_PER_INSTANCE: u32 = 4;

/// Memory mappings that one instance in use may need: about 4 of its own and
/// 2 of its stack, which count from the start.
const MAPPINGS_PER_INSTANCE: u64 = 6;

/// Each instance has 4 GiB of the address space reserved for its memory, so
/// that accesses need no bounds check; there are 128 TiB, not all in one piece.
const MOST_INSTANCES: u32 = 16_000;

/// Left to the rest of the process.
const MAPPINGS_RESERVED: u64 = 4_096;

/// Builds the engine that `flags` and `limits` ask for. Warnings are added to
/// `warnings`.
///
/// # Errors
/// Flags that do not go together, or pools that the address space cannot hold.
pub fn build(flags: &Flags, limits: &Limits, warnings: &mut Vec<String>) -> anyhow::Result<Engine> {
    let mut config = flags.engine_config(&pool_sizes(limits, warnings))?;
    if flags.cache().enabled {
        match cache(flags) {
            Ok(cache) => _ = config.cache(Some(cache)),
            Err(error) => {
                warnings.push(format!("components are compiled at each start: {error:#}"))
            }
        }
    }
    Engine::new(&config).map_err(anyhow::Error::from).context(
        "cannot build the engine; where memory cannot be reserved, a smaller \
             --max-concurrent-requests needs less, and -O pooling-allocator=n none",
    )
}

/// Every request may call one other in process, so there are twice as many
/// instances as requests, where the kernel lets us.
fn pool_sizes(limits: &Limits, warnings: &mut Vec<String>) -> PoolSizes {
    let wanted = u32::try_from(limits.requests.saturating_mul(2)).unwrap_or(u32::MAX);
    let mapped = mappings().map_or(u32::MAX, |most| {
        let instances = most.saturating_sub(MAPPINGS_RESERVED) / MAPPINGS_PER_INSTANCE;
        u32::try_from(instances).unwrap_or(u32::MAX)
    });
    let possible = mapped.min(MOST_INSTANCES);
    let instances = wanted.min(possible).max(16);
    if possible < wanted {
        let reason = if mapped < MOST_INSTANCES {
            "vm.max_map_count"
        } else {
            "the address space"
        };
        warnings.push(format!(
            "{reason} allows {possible} instances at once, and {} requests may need {wanted}; \
             lower --max-concurrent-requests",
            limits.requests
        ));
    }
    let cannot_swap = cannot_be_swapped();
    PoolSizes {
        component_instances: instances,
        core_instances: instances.saturating_mul(CORE_INSTANCES_PER_INSTANCE),
        memories: instances,
        tables: instances.saturating_mul(2),
        stacks: instances,
        gc_heaps: 1_000.min(instances),
        max_memory_bytes: limits.memory_bytes,
        table_elements: 20_000,
        pagemap_scan: if cannot_swap {
            Enabled::Auto
        } else {
            Enabled::No
        },
        // Without PAGEMAP_SCAN a slot is reset by clearing all that is kept.
        keep_resident: cannot_swap,
    }
}

fn mappings() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok()?;
    text.trim().parse().ok()
}

/// `PAGEMAP_SCAN` resets only the pages that are present. A dirty page that
/// was swapped out would survive, and the next instance would read it: without
/// certainty that there is no swap, wasmtime resets by other means.
fn cannot_be_swapped() -> bool {
    let no_area = std::fs::read_to_string("/proc/swaps")
        .is_ok_and(|table| table.lines().skip(1).all(|line| line.trim().is_empty()));
    let not_allowed = own_cgroup().is_some_and(|cgroup| {
        let mut ancestors = cgroup.ancestors();
        ancestors.any(|cgroup| {
            std::fs::read_to_string(cgroup.join("memory.swap.max"))
                .is_ok_and(|most| most.trim() == "0")
        })
    });
    no_area || not_allowed
}

fn own_cgroup() -> Option<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = table.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(PathBuf::from("/sys/fs/cgroup").join(path))
}

/// wasmtime's cache, in a folder of our own.
fn cache(flags: &Flags) -> anyhow::Result<Cache> {
    if let Some(file) = &flags.cache().config {
        return Ok(Cache::from_file(Some(file))?);
    }
    let mut config = CacheConfig::new();
    config.with_directory(cache_directory().context("neither XDG_CACHE_HOME nor HOME is set")?);
    Ok(Cache::new(config)?)
}

fn cache_directory() -> Option<PathBuf> {
    let set = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|p| p.is_absolute())
    };
    let base = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(base.join("host"))
}

/// Moves the engine's clock; ends when dropped.
pub struct Ticker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    /// # Errors
    /// No thread can be started.
    pub fn start(engine: &Engine) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (engine, stopped) = (engine.weak(), Arc::clone(&stop));
        let thread = std::thread::Builder::new()
            .name("epoch".into())
            .spawn(move || {
                while !stopped.load(Ordering::Relaxed) {
                    std::thread::sleep(TICK);
                    let Some(engine) = engine.upgrade() else {
                        return;
                    };
                    engine.increment_epoch();
                }
            })
            .context("cannot start the thread of the engine's clock")?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}
