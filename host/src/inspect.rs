//! `host compile` and `host inspect`: what a component is, without serving it.

use crate::cli::{Compile, Inspect};
use crate::component::{Source, compile, world_of};
use crate::engine;
use crate::flags::{Flags, Groups};
use crate::limits::Limits;
use anyhow::{Context as _, bail};
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use wasmparser::{Parser, Payload};
use wasmtime::Engine;
use wasmtime::component::Component;

/// Writes native code that `host serve --allow-precompiled` takes.
///
/// # Errors
/// The component is not valid, or the file cannot be written.
pub fn run_compile(command: &Compile) -> anyhow::Result<()> {
    let flags = command.wasmtime.flags()?;
    let engine = engine::build(&flags, &Limits::default(), &mut Vec::new())?;
    let source = crate::cli::source(&command.component)?;
    let code = compile(&engine, &source.read()?, false)
        .and_then(|component| Ok(component.serialize()?))
        .with_context(|| format!("cannot compile {source}"))?;
    let output = match &command.output {
        Some(output) => output.clone(),
        None => default_output(&source)?,
    };
    write_atomically(&output, &code)
}

fn default_output(source: &Source) -> anyhow::Result<PathBuf> {
    match source {
        Source::File(path) => Ok(path.with_extension("cwasm")),
        Source::Builtin(name, _) => Ok(format!("{name}.cwasm").into()),
        Source::Stdin => bail!("a component from standard input needs --output FILE"),
    }
}

/// A reader never sees half of the file.
fn write_atomically(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    // A link stays one.
    let resolved = std::fs::canonicalize(path);
    let path = resolved.as_deref().unwrap_or(path);
    if path.metadata().is_ok_and(|data| !data.is_file()) {
        // A device or a pipe is written to, not replaced.
        return std::fs::write(path, bytes)
            .with_context(|| format!("cannot write {}", path.display()));
    }
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let write = || {
        std::fs::write(&temporary, bytes)?;
        std::fs::rename(&temporary, path)
    };
    write().with_context(|| {
        _ = std::fs::remove_file(&temporary);
        format!("cannot write {}", path.display())
    })
}

/// Prints what a component imports, exports and needs.
///
/// # Errors
/// The component is not valid.
pub fn run_inspect(command: &Inspect) -> anyhow::Result<()> {
    let flags = Flags::parse(Groups::default())?;
    let engine = engine::build(&flags, &Limits::default(), &mut Vec::new())?;
    let source = crate::cli::source(&command.component)?;
    let report = source
        .read()
        .and_then(|bytes| Report::new(&engine, &bytes))
        .with_context(|| format!("cannot inspect {source}"))?;
    let text = if command.json {
        serde_json::to_string_pretty(&report)? + "\n"
    } else {
        report.to_string()
    };
    use std::io::Write as _;
    std::io::stdout()
        .write_all(text.as_bytes())
        .context("cannot write to standard output")
}

/// Bytes.
const WASM_PAGE: u64 = 65_536;

#[derive(Serialize)]
struct Report {
    /// Absent where nothing can be served.
    world: Option<String>,
    imports: Vec<String>,
    exports: Vec<String>,
    /// What one instance takes of the engine's pools.
    core_instances: usize,
    memories: u32,
    tables: u32,
    /// Of the largest memory, when the instance starts.
    initial_memory_bytes: u64,
    initial_table_elements: u64,
    component_bytes: usize,
    native_code_bytes: usize,
}

impl Report {
    fn new(engine: &Engine, bytes: &[u8]) -> anyhow::Result<Self> {
        let component = compile(engine, bytes, false)?;
        let ty = component.component_type();
        let needs = component.resources_required();
        Ok(Self {
            world: world_of(engine, &component).map(|world| world.to_string()),
            imports: ty
                .imports(engine)
                .map(|(name, _)| name.to_owned())
                .collect(),
            exports: ty
                .exports(engine)
                .map(|(name, _)| name.to_owned())
                .collect(),
            core_instances: core_instances(bytes)?,
            memories: needs.as_ref().map_or(0, |needs| needs.num_memories),
            tables: needs.as_ref().map_or(0, |needs| needs.num_tables),
            initial_memory_bytes: needs
                .as_ref()
                .and_then(|needs| needs.max_initial_memory_size)
                .map_or(0, |pages| pages * WASM_PAGE),
            initial_table_elements: needs
                .as_ref()
                .and_then(|needs| needs.max_initial_table_size)
                .unwrap_or(0),
            component_bytes: bytes.len(),
            native_code_bytes: native_code_bytes(&component),
        })
    }
}

fn native_code_bytes(component: &Component) -> usize {
    let range = component.image_range();
    range.end as usize - range.start as usize
}

/// Instances of core modules that one instance of the component consists of.
fn core_instances(bytes: &[u8]) -> anyhow::Result<usize> {
    let binary = wat::parse_bytes(bytes)?;
    let mut count = 0;
    for payload in Parser::new(0).parse_all(&binary) {
        if let Payload::InstanceSection(instances) = payload? {
            for instance in instances {
                count += usize::from(matches!(
                    instance?,
                    wasmparser::Instance::Instantiate { .. }
                ));
            }
        }
    }
    Ok(count)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let world = self
            .world
            .as_deref()
            .unwrap_or("none that this host serves");
        writeln!(f, "world            {world}")?;
        for (title, names) in [("imports", &self.imports), ("exports", &self.exports)] {
            for (row, name) in names.iter().enumerate() {
                writeln!(f, "{:<16} {name}", if row == 0 { title } else { "" })?;
            }
        }
        writeln!(
            f,
            "one instance     core instances: {}",
            self.core_instances
        )?;
        writeln!(
            f,
            "                 memories: {}, the largest of {} KiB at first",
            self.memories,
            self.initial_memory_bytes / 1024
        )?;
        writeln!(
            f,
            "                 tables: {}, the largest of {} elements at first",
            self.tables, self.initial_table_elements
        )?;
        writeln!(
            f,
            "component        {} KiB",
            self.component_bytes.div_ceil(1024)
        )?;
        writeln!(
            f,
            "native code      {} KiB",
            self.native_code_bytes.div_ceil(1024)
        )
    }
}
