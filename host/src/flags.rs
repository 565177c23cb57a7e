//! The flag groups `-S -W -O -C -D`, with the names and meanings that they have
//! in `wasmtime serve`.
//!
//! `wasmtime-cli-flags` parses them and turns most of them into an engine's
//! configuration; what a store or WASI needs becomes plain values here. Each
//! option is honoured or refused by name, never ignored: the five option
//! structs are taken apart without `..`, so one that a later release adds stops
//! the build until it is placed. Nothing here acts on a value.

use clap::Parser as _;
use std::path::PathBuf;
use std::time::Duration;
use wasmtime::{Config, Enabled, Strategy};
use wasmtime_cli_flags::{
    CodegenOptions, CommonOptions, DebugOptions, KeyValuePair, OptimizeOptions, WasiOptions,
    WasmOptions,
};

/// Bytes of each memory and table that the pool resets in place, not by
/// unmapping. Default of `-O pooling-memory-keep-resident` and
/// `-O pooling-table-keep-resident`.
const KEEP_RESIDENT: usize = 1 << 20;
/// The same for stacks, which only `-W async-stack-zeroing` resets. Far less,
/// because zeroing a stack in place also fills pages that nobody had touched.
const STACK_KEEP_RESIDENT: usize = 64 << 10;
const DECOMMIT_BATCH: usize = 16;

const ALWAYS_ON: &str = "cannot be switched off, the host stands on it; leave it out";

/// Raw values as clap collected them, in order, one entry per occurrence.
#[derive(Clone, Copy, Debug, Default)]
pub struct Groups<'a> {
    pub wasi: &'a [String],
    pub wasm: &'a [String],
    pub optimize: &'a [String],
    pub codegen: &'a [String],
    pub debug: &'a [String],
}

/// The flags of one command line, parsed and checked.
pub struct Flags {
    options: CommonOptions,
    wasi: WasiFlags,
    store: StoreFlags,
    cache: CacheFlags,
}

/// The host's own sizes for the pooling allocator, where no flag says else.
#[derive(Clone, Debug)]
pub struct PoolSizes {
    pub component_instances: u32,
    pub core_instances: u32,
    pub memories: u32,
    pub tables: u32,
    pub stacks: u32,
    pub gc_heaps: u32,
    pub max_memory_bytes: usize,
    pub table_elements: usize,
    pub pagemap_scan: Enabled,
    /// Keep pages of freed slots; without it each reset unmaps them.
    pub keep_resident: bool,
}

/// What `-S` gives to guests. Absent options are wasmtime's defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WasiFlags {
    /// Link `wasi:config`; a `config-var` implies it.
    pub config: bool,
    pub config_vars: Vec<(String, String)>,
    /// Link `wasi:keyvalue`; `keyvalue-in-memory-data` implies it.
    pub keyvalue: bool,
    pub keyvalue_data: Vec<(String, String)>,
    /// Link wasi 0.3 beside 0.2. Default true.
    pub p3: bool,
    pub network_error_code: bool,
    pub inherit_network: bool,
    pub allow_ip_name_lookup: Option<bool>,
    pub tcp: Option<bool>,
    pub udp: Option<bool>,
    pub inherit_env: bool,
    /// Show what guests print. Default true.
    pub inherit_stdout: bool,
    /// Show what guests print on stderr. Default true.
    pub inherit_stderr: bool,
    pub cwd: Option<String>,
    /// Writes that an outgoing p2 body buffers; at least 1.
    pub outgoing_body_buffer_chunks: Option<usize>,
    /// Bytes of one write to an outgoing p2 body; at least 1.
    pub outgoing_body_chunk_size: Option<usize>,
    pub max_resources: Option<usize>,
    pub hostcall_fuel: Option<usize>,
    pub max_component_handles: Option<usize>,
    pub max_random_size: Option<u64>,
    pub max_http_fields_size: Option<usize>,
}

/// What `-W` sets on each store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFlags {
    /// Bounds a request's whole time, not only its computing.
    pub timeout: Option<Duration>,
    pub fuel: Option<u64>,
    /// Bytes of each linear memory. `-O pooling-max-memory-size` alone sets it
    /// too: whoever makes the slots larger wants memories that fill them.
    pub max_memory_size: Option<usize>,
    pub max_table_elements: Option<usize>,
    pub max_instances: Option<usize>,
    pub max_tables: Option<usize>,
    pub max_memories: Option<usize>,
    pub trap_on_grow_failure: bool,
}

/// Where compiled code is kept between starts (`-C`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheFlags {
    /// Default true.
    pub enabled: bool,
    /// A configuration file of wasmtime's cache, in place of its default one.
    pub config: Option<PathBuf>,
}

impl Flags {
    /// Parses and checks every flag. `help` and `help-long` as a value print
    /// the group's options and end the process.
    ///
    /// # Errors
    /// One error with a line for each flag that cannot be understood or
    /// honoured.
    pub fn parse(groups: Groups<'_>) -> anyhow::Result<Self> {
        let mut refused = Refused::default();
        let mut options = parse_options(groups, &mut refused)?;
        let wasi = check_wasi(&options.wasi, &mut refused);
        let mut store = check_wasm(&options.wasm, &mut refused);
        check_optimize(&options.opts, &mut refused);
        let cache = check_codegen(&options.codegen, &mut refused);
        check_debug(&options.debug, &mut refused);
        anyhow::ensure!(refused.0.is_empty(), "{}", refused.0.join("\n"));

        let slot = options.opts.pooling_max_memory_size;
        store.max_memory_size = store.max_memory_size.or(slot);
        // Switched off by name, which is fine, but `CommonOptions::config`
        // refuses any value of what was not compiled in.
        options.debug.guest_debug = None;
        options.opts.pooling_memory_protection_keys = None;
        Ok(Self {
            options,
            wasi,
            store,
            cache,
        })
    }

    pub fn wasi(&self) -> &WasiFlags {
        &self.wasi
    }

    pub fn store(&self) -> &StoreFlags {
        &self.store
    }

    pub fn cache(&self) -> &CacheFlags {
        &self.cache
    }

    /// The configuration of an engine: the host's defaults, and the flags,
    /// which win. It has no compile cache; that is for the caller to add.
    ///
    /// Don't call `allocation_strategy` on it, which would replace the pool
    /// that the flags describe.
    ///
    /// # Errors
    /// A combination that wasmtime does not support; others show up only when
    /// the engine is made.
    pub fn engine_config(&self, pool: &PoolSizes) -> anyhow::Result<Config> {
        let mut options = self.options.clone();
        let wasm = &mut options.wasm;
        wasm.component_model = Some(true);
        wasm.concurrency_support = Some(true);
        wasm.epoch_interruption = Some(true);
        // Named, so that `-W all-proposals=n` does not end wasi 0.3.
        wasm.component_model_async.get_or_insert(true);
        // A trap's backtrace then says where in the component each frame was.
        options.debug.address_map.get_or_insert(true);
        options.codegen.cache = Some(false);

        let opts = &mut options.opts;
        opts.pooling_allocator.get_or_insert(true);
        let instances = &mut opts.pooling_total_component_instances;
        instances.get_or_insert(pool.component_instances);
        let instances = &mut opts.pooling_total_core_instances;
        instances.get_or_insert(pool.core_instances);
        opts.pooling_total_memories.get_or_insert(pool.memories);
        opts.pooling_total_tables.get_or_insert(pool.tables);
        opts.pooling_total_stacks.get_or_insert(pool.stacks);
        opts.pooling_total_gc_heaps.get_or_insert(pool.gc_heaps);
        // A slot has to hold what the store allows, so the store's flags come
        // before the host's own sizes.
        let slot = self.store.max_memory_size.unwrap_or(pool.max_memory_bytes);
        opts.pooling_max_memory_size.get_or_insert(slot);
        let slot = self.store.max_table_elements.unwrap_or(pool.table_elements);
        opts.pooling_table_elements.get_or_insert(slot);
        let batch = &mut opts.pooling_decommit_batch_size;
        batch.get_or_insert(DECOMMIT_BATCH);
        opts.pooling_pagemap_scan.get_or_insert(pool.pagemap_scan);
        if pool.keep_resident {
            let memories = &mut opts.pooling_memory_keep_resident;
            memories.get_or_insert(KEEP_RESIDENT);
            let tables = &mut opts.pooling_table_keep_resident;
            tables.get_or_insert(KEEP_RESIDENT);
            let stacks = &mut opts.pooling_async_stack_keep_resident;
            stacks.get_or_insert(STACK_KEEP_RESIDENT);
        }
        Ok(options.config(None)?)
    }
}

/// One line for each flag that cannot be honoured.
#[derive(Default)]
struct Refused(Vec<String>);

impl Refused {
    /// `flag` is what the user typed; `why` says the reason and the way out.
    fn when(&mut self, refused: bool, flag: &str, why: &str) {
        if refused {
            self.0.push(format!("{flag}: {why}"));
        }
    }

    fn on(&mut self, value: &Option<bool>, flag: &str, why: &str) {
        self.when(*value == Some(true), flag, why);
    }

    fn off(&mut self, value: &Option<bool>, flag: &str, why: &str) {
        self.when(*value == Some(false), flag, why);
    }
}

/// Parses each flag alone first, so that a mistake in one does not hide the
/// next, then those that passed together.
fn parse_options(groups: Groups<'_>, refused: &mut Refused) -> anyhow::Result<CommonOptions> {
    let mut arguments = vec!["host".to_owned()];
    for (letter, values) in [
        ('S', groups.wasi),
        ('W', groups.wasm),
        ('O', groups.optimize),
        ('C', groups.codegen),
        ('D', groups.debug),
    ] {
        for flag in values.iter().flat_map(|value| value.split(',')) {
            // With `=`, so that a value which starts with `-` stays a value.
            let argument = format!("-{letter}={flag}");
            match CommonOptions::try_parse_from(["host", &argument]) {
                Ok(_) => arguments.push(argument),
                Err(error) => {
                    let flag = format!("-{letter} {flag}");
                    refused.when(true, &flag, &reason(&error, letter));
                }
            }
        }
    }
    let mut options = CommonOptions::try_parse_from(arguments)?;
    // Its one way to fill the public fields without building a `Config`. It
    // sets up no log, for which the crate would need its `logging` feature; it
    // says so in an error when `-D` asks for one, and `check_debug` judges that.
    let _ = options.init_logging();
    Ok(options)
}

/// The one line of clap's report that says what is wrong, without the flag.
fn reason(error: &clap::Error, letter: char) -> String {
    let report = error.to_string();
    let line = report.lines().next().unwrap_or_default();
    let line = line.strip_prefix("error: ").unwrap_or(line);
    let line = line.split_once("`: ").map_or(line, |(_, reason)| reason);
    format!("{line}; see `-{letter} help`")
}

fn check_wasi(options: &WasiOptions, refused: &mut Refused) -> WasiFlags {
    const TWICE: &str = "is the old name of `-S cli`; give one of the two";
    const NO_NN: &str = "wasi:nn is not built in; reach a model server over HTTP instead";
    const NO_TLS: &str = "wasi:tls is not built in; https through wasi:http needs no flag";
    const CORE_ONLY: &str = "is for core modules, and this host runs components; leave it out";
    const SOCKET: &str = "components take over no socket; `--addr` says where the host listens";
    const STDIN: &str = "guests of a server share no stdin, theirs is empty; send a request body";
    const ZERO: &str = "no guest could ever write a body; give 1 or more";
    #[rustfmt::skip] // one name a line would bury the checks
    let WasiOptions {
        cli, cli_exit_with_code, common, nn, threads, http, http_outgoing_body_buffer_chunks: chunks,
        http_outgoing_body_chunk_size: chunk_size, config, keyvalue, listenfd, tcplisten, tls, preview2,
        nn_graph, inherit_network, allow_ip_name_lookup, tcp, udp, network_error_code, preview0,
        inherit_env, inherit_stdin, inherit_stdout, inherit_stderr, cwd, config_var,
        keyvalue_in_memory_data, p3, max_resources, hostcall_fuel, max_component_handles,
        max_random_size, max_http_fields_size,
    } = options;
    // `cli=n` passes although the CLI world stays linked: a guest that runs
    // without it imports nothing of it, and linking it gives no rights.
    refused.when(cli.is_some() && common.is_some(), "-S common", TWICE);
    refused.off(cli_exit_with_code, "-S cli-exit-with-code=n", ALWAYS_ON);
    refused.off(http, "-S http=n", ALWAYS_ON);
    refused.off(preview2, "-S preview2=n", ALWAYS_ON);
    refused.on(nn, "-S nn", NO_NN);
    refused.when(!nn_graph.is_empty(), "-S nn-graph", NO_NN);
    refused.on(tls, "-S tls", NO_TLS);
    refused.on(threads, "-S threads", CORE_ONLY);
    refused.on(preview0, "-S preview0", CORE_ONLY);
    refused.on(listenfd, "-S listenfd", SOCKET);
    refused.when(!tcplisten.is_empty(), "-S tcplisten", SOCKET);
    refused.on(inherit_stdin, "-S inherit-stdin", STDIN);
    let flag = "-S http-outgoing-body-buffer-chunks=0";
    refused.when(*chunks == Some(0), flag, ZERO);
    let flag = "-S http-outgoing-body-chunk-size=0";
    refused.when(*chunk_size == Some(0), flag, ZERO);
    WasiFlags {
        config: config.unwrap_or(!config_var.is_empty()),
        config_vars: pairs(config_var),
        keyvalue: keyvalue.unwrap_or(!keyvalue_in_memory_data.is_empty()),
        keyvalue_data: pairs(keyvalue_in_memory_data),
        p3: p3.unwrap_or(true),
        network_error_code: *network_error_code == Some(true),
        inherit_network: *inherit_network == Some(true),
        allow_ip_name_lookup: *allow_ip_name_lookup,
        tcp: *tcp,
        udp: *udp,
        inherit_env: *inherit_env == Some(true),
        inherit_stdout: *inherit_stdout != Some(false),
        inherit_stderr: *inherit_stderr != Some(false),
        cwd: cwd.clone(),
        outgoing_body_buffer_chunks: *chunks,
        outgoing_body_chunk_size: *chunk_size,
        max_resources: *max_resources,
        hostcall_fuel: *hostcall_fuel,
        max_component_handles: *max_component_handles,
        max_random_size: *max_random_size,
        max_http_fields_size: *max_http_fields_size,
    }
}

fn pairs(given: &[KeyValuePair]) -> Vec<(String, String)> {
    let pair = |pair: &KeyValuePair| (pair.key.clone(), pair.value.clone());
    given.iter().map(pair).collect()
}

fn check_wasm(options: &WasmOptions, refused: &mut Refused) -> StoreFlags {
    const NOT_BUILT: &str = "is not part of this build; leave it out";
    const IMPORTS: &str = "is for core modules; `host inspect` lists what a component imports";
    #[rustfmt::skip] // as above
    let WasmOptions {
        // `CommonOptions::config` honours:
        nan_canonicalization: _, max_wasm_stack: _, async_stack_size: _, async_stack_zeroing: _,
        all_proposals: _, bulk_memory: _, multi_memory: _, multi_value: _, reference_types: _,
        simd: _, relaxed_simd: _, relaxed_simd_deterministic: _, tail_call: _, threads: _,
        shared_memory: _, memory64: _, component_model_async: _,
        component_model_more_async_builtins: _, component_model_async_stackful: _,
        component_model_threading: _, component_model_error_context: _, component_model_gc: _,
        component_model_map: _, component_model_memory64: _, function_references: _, gc: _,
        custom_page_sizes: _, wide_arithmetic: _, branch_hinting: _, extended_const: _,
        exceptions: _, gc_support: _, component_model_fixed_length_lists: _,
        component_model_implements: _,
        // What a component exports besides its handler is never an error:
        unknown_exports_allow: _,
        // Judged or returned here:
        epoch_interruption, component_model, concurrency_support, stack_switching, wmemcheck,
        unknown_imports_trap: trap, unknown_imports_default: default, fuel, max_memory_size, max_table_elements,
        max_instances, max_tables, max_memories, trap_on_grow_failure, timeout,
        shared_everything_threads: shared_all,
    } = options;
    refused.off(epoch_interruption, "-W epoch-interruption=n", ALWAYS_ON);
    refused.off(component_model, "-W component-model=n", ALWAYS_ON);
    refused.off(concurrency_support, "-W concurrency-support=n", ALWAYS_ON);
    refused.on(stack_switching, "-W stack-switching", NOT_BUILT);
    refused.on(shared_all, "-W shared-everything-threads", NOT_BUILT);
    refused.on(wmemcheck, "-W wmemcheck", NOT_BUILT);
    refused.on(trap, "-W unknown-imports-trap", IMPORTS);
    refused.on(default, "-W unknown-imports-default", IMPORTS);
    StoreFlags {
        timeout: *timeout,
        fuel: *fuel,
        max_memory_size: *max_memory_size,
        max_table_elements: *max_table_elements,
        max_instances: *max_instances,
        max_tables: *max_tables,
        max_memories: *max_memories,
        trap_on_grow_failure: *trap_on_grow_failure == Some(true),
    }
}

fn check_optimize(options: &OptimizeOptions, refused: &mut Refused) {
    const NO_KEYS: &str = "memory protection keys are not compiled in; leave it out";
    const FUZZING: &str = "works only in fuzzing builds of wasmtime; leave it out";
    #[rustfmt::skip] // as above
    let OptimizeOptions {
        // `CommonOptions::config` honours:
        opt_level: _, regalloc_algorithm: _, memory_may_move: _, memory_reservation: _,
        memory_reservation_for_growth: _, memory_guard_size: _, gc_heap_may_move: _,
        gc_heap_reservation: _, gc_heap_reservation_for_growth: _, gc_heap_guard_size: _,
        gc_heap_initial_size: _, guard_before_linear_memory: _, table_lazy_init: _,
        pooling_allocator: _, pooling_decommit_batch_size: _, pooling_memory_keep_resident: _,
        pooling_table_keep_resident: _, memory_init_cow: _, memory_guaranteed_dense_image_size: _,
        pooling_total_core_instances: _, pooling_total_component_instances: _,
        pooling_total_memories: _, pooling_total_tables: _, pooling_total_stacks: _,
        pooling_max_memory_size: _, pooling_table_elements: _, pooling_max_core_instance_size: _,
        pooling_max_unused_warm_slots: _, pooling_async_stack_keep_resident: _,
        pooling_max_component_instance_size: _, pooling_max_core_instances_per_component: _,
        pooling_max_memories_per_component: _, pooling_max_tables_per_component: _,
        pooling_max_tables_per_module: _, pooling_max_memories_per_module: _,
        pooling_total_gc_heaps: _, signals_based_traps: _, dynamic_memory_guard_size: _,
        static_memory_guard_size: _, static_memory_forced: _, static_memory_maximum_size: _,
        dynamic_memory_reserved_for_growth: _, pooling_pagemap_scan: _,
        // Judged here:
        pooling_memory_protection_keys: keys, pooling_max_memory_protection_keys: max_keys,
        gc_zeal_alloc_counter,
    } = options;
    let keys = keys.is_some_and(|keys| !matches!(keys, Enabled::No));
    refused.when(keys, "-O pooling-memory-protection-keys", NO_KEYS);
    let flag = "-O pooling-max-memory-protection-keys";
    refused.when(max_keys.is_some(), flag, NO_KEYS);
    let zeal = gc_zeal_alloc_counter.is_some();
    refused.when(zeal, "-O gc-zeal-alloc-counter", FUZZING);
}

fn check_codegen(options: &CodegenOptions, refused: &mut Refused) -> CacheFlags {
    const ONLY_CRANELIFT: &str = "only cranelift is compiled in; leave it out";
    #[rustfmt::skip] // as above
    let CodegenOptions {
        // `CommonOptions::config` honours:
        collector: _, cranelift_debug_verifier: _, parallel_compilation: _, native_unwind_info: _,
        inlining: _, metadata_for_internal_asserts: _, metadata_for_gc_heap_corruption: _,
        cranelift: _,
        // Judged or returned here:
        compiler, cache, cache_config,
    } = options;
    let other = compiler.is_some_and(|compiler| compiler != Strategy::Cranelift);
    refused.when(other, "-C compiler", ONLY_CRANELIFT);
    CacheFlags {
        enabled: *cache != Some(false),
        config: cache_config.as_ref().map(PathBuf::from),
    }
}

fn check_debug(options: &DebugOptions, refused: &mut Refused) {
    const KEEPS_LOG: &str = "the log tells of failed requests; redirect stderr instead";
    const NO_FILES: &str = "the host logs to stderr; redirect that instead";
    const NO_DUMP: &str = "no core dumps are written; the log has the backtrace of each trap";
    const NO_DEBUGGER: &str = "no debugger is built in; debug the guest under `wasmtime serve`";
    #[rustfmt::skip] // as above
    let DebugOptions {
        // `CommonOptions::config` honours:
        debug_info: _, address_map: _, max_backtrace: _, symbols: _,
        // Judged here:
        guest_debug, logging, log_to_files, coredump, debugger, arg, inherit_stdin, inherit_stdout,
        inherit_stderr,
    } = options;
    refused.off(logging, "-D logging=n", KEEPS_LOG);
    refused.on(log_to_files, "-D log-to-files", NO_FILES);
    refused.when(coredump.is_some(), "-D coredump", NO_DUMP);
    refused.on(guest_debug, "-D guest-debug", NO_DEBUGGER);
    refused.when(debugger.is_some(), "-D debugger", NO_DEBUGGER);
    refused.when(!arg.is_empty(), "-D arg", NO_DEBUGGER);
    refused.on(inherit_stdin, "-D inherit-stdin", NO_DEBUGGER);
    refused.on(inherit_stdout, "-D inherit-stdout", NO_DEBUGGER);
    refused.on(inherit_stderr, "-D inherit-stderr", NO_DEBUGGER);
}

#[cfg(test)]
mod tests {
    use super::*;
    use wasmtime::Engine;

    /// Parses flags as they stand on a command line: `-S nn -W fuel=5`.
    fn parse(line: &str) -> anyhow::Result<Flags> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [wasi, wasm, optimize, codegen, debug] = ["-S", "-W", "-O", "-C", "-D"].map(|group| {
            let given = words.chunks(2).filter(|pair| pair[0] == group);
            given.map(|pair| pair[1].to_owned()).collect::<Vec<_>>()
        });
        Flags::parse(Groups {
            wasi: &wasi,
            wasm: &wasm,
            optimize: &optimize,
            codegen: &codegen,
            debug: &debug,
        })
    }

    #[test]
    fn what_is_accepted_gives_its_value() {
        for row in [
            " => p3: true",
            " => inherit_stdout: true, inherit_stderr: true",
            " => config: false",
            " => enabled: true",
            "-S cli,http,preview2 => allow_ip_name_lookup: None, tcp: None, udp: None",
            "-S cli=n,nn=n,threads=n,tls=n => inherit_env: false",
            "-S tcp -S udp=n => tcp: Some(true), udp: Some(false)",
            "-S p3=n => p3: false",
            "-S p3=n,p3 => p3: true",
            r#"-S config,config-var=a=b=c => config: true, config_vars: [("a", "b=c")]"#,
            r#"-S config-var=a -S config-var=b => config: true, config_vars: [("a", ""), ("b", "")]"#,
            "-S config=n,config-var=a=b => config: false",
            "-S keyvalue => keyvalue: true, keyvalue_data: []",
            r#"-S keyvalue-in-memory-data=k=v => keyvalue: true, keyvalue_data: [("k", "v")]"#,
            "-S http-outgoing-body-buffer-chunks=4 => outgoing_body_buffer_chunks: Some(4)",
            "-S http-outgoing-body-chunk-size=0x10 => outgoing_body_chunk_size: Some(16)",
            r#"-S cwd=/x,inherit-stderr=n => inherit_stderr: false, cwd: Some("/x")"#,
            "-W timeout=3 => timeout: Some(3s)",
            "-W timeout=20ms,fuel=1_000 => timeout: Some(20ms), fuel: Some(1000)",
            "-O pooling-max-memory-size=8 => max_memory_size: Some(8)",
            "-W max-memory-size=9 -O pooling-max-memory-size=8 => max_memory_size: Some(9)",
            "-W trap-on-grow-failure => trap_on_grow_failure: true",
            r#"-C cache=n,cache-config=/c => enabled: false, config: Some("/c")"#,
        ] {
            let (line, expected) = row.split_once(" => ").unwrap();
            let flags = parse(line).unwrap();
            let values = format!("{:?} {:?} {:?}", flags.wasi, flags.store, flags.cache);
            assert!(values.contains(expected), "{row}: {values}");
        }
    }

    #[test]
    fn engines_follow_the_flags_then_the_host() {
        let pool = PoolSizes {
            component_instances: 7,
            core_instances: 21,
            memories: 8,
            tables: 14,
            stacks: 9,
            gc_heaps: 6,
            max_memory_bytes: 64 << 20,
            table_elements: 30_000,
            pagemap_scan: Enabled::Auto,
            keep_resident: true,
        };
        for row in [
            " => pooling_total_core_instances: Some(21)",
            " => pooling_total_component_instances: Some(7)",
            " => pooling_total_memories: Some(8)",
            " => pooling_total_tables: Some(14)",
            " => pooling_total_stacks: Some(9)",
            " => pooling_total_gc_heaps: Some(6)",
            " => pooling_max_memory_size: Some(67108864)",
            " => pooling_table_elements: Some(30000)",
            " => pooling_decommit_batch_size: Some(16)",
            " => pooling_memory_keep_resident: Some(1048576)",
            " => pooling_pagemap_scan: Some(Auto)",
            " => address_map: Some(true)",
            " => epoch_interruption: Some(true)",
            " => component_model_async: Some(true)",
            "-W all-proposals=n => component_model_async: Some(true)",
            "-W all-proposals => memory64: Some(true)",
            "-W max-memory-size=131072 => pooling_max_memory_size: Some(131072)",
            "-W max-memory-size=1 -O pooling-max-memory-size=2 => pooling_max_memory_size: Some(2)",
            "-W max-table-elements=5 => pooling_table_elements: Some(5)",
            "-W fuel=5 => fuel: Some",
            "-W max-wasm-stack=1000000 => async_stack_size: Some(1524288)",
            "-O pooling-allocator,pooling-total-stacks=3 => pooling_total_stacks: Some(3)",
            "-O pooling-memory-keep-resident=0 => pooling_memory_keep_resident: Some(0)",
            "-O pooling-allocator=n => pooling_allocator: Some(false)",
            "-O pooling-memory-protection-keys=n => pooling_allocator: Some(true)",
            "-D guest-debug=n,address-map=n => address_map: Some(false)",
        ] {
            let (line, expected) = row.split_once(" => ").unwrap();
            let config = parse(line).unwrap().engine_config(&pool).unwrap();
            let engine = CommonOptions::from_engine(&Engine::new(&config).unwrap());
            let values = format!("{:?} {:?} {:?}", engine.opts, engine.wasm, engine.debug);
            assert!(values.contains(expected), "{row}: {values}");
        }
    }

    #[test]
    fn what_is_not_honoured_is_refused_by_name() {
        let refused = "-S nn,nn-graph=a::b,tls,threads,listenfd,tcplisten=a,preview0,preview2=n \
             -S http=n,cli-exit-with-code=n,inherit-stdin,nonsense,-x,cli=maybe \
             -S http-outgoing-body-buffer-chunks=0,http-outgoing-body-chunk-size=0 \
             -W component-model=n,epoch-interruption=n,concurrency-support=n,stack-switching \
             -W wmemcheck,unknown-imports-trap,unknown-imports-default,fuel=many,fuel \
             -W shared-everything-threads -D logging=n,log-to-files,guest-debug,inherit-stdin \
             -D coredump=c,debugger=d,arg=a,inherit-stdout,inherit-stderr -C compiler=winch \
             -O gc-zeal-alloc-counter=1,pooling-memory-protection-keys=auto \
             -O pooling-max-memory-protection-keys=2";
        let together = parse(refused).err().unwrap().to_string();
        let mut named = 0;
        for group in refused.split_whitespace().collect::<Vec<_>>().chunks(2) {
            for flag in group[1].split(',') {
                let line = format!("{} {flag}", group[0]);
                let error = parse(&line).err().expect(&line).to_string();
                let (name, _) = error.split_once(": ").unwrap();
                assert!(
                    line.starts_with(name) && !error.contains('\n'),
                    "{line}: {error}"
                );
                assert!(together.contains(&error), "{line} is not in {together}");
                named += 1;
            }
        }
        assert_eq!(named, together.lines().count());
        let error = parse("-S cli,common=n").err().unwrap().to_string();
        assert!(error.starts_with("-S common: "), "{error}");
    }
}
