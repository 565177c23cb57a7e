//! Finds WASI's WIT packages in the crates that ship them, so that this
//! repository holds no copy, and writes the macro that generates bindings from
//! them and from the worlds in `wit/`. A macro, because the generator wants
//! literal paths; one per version, because 0.2 and 0.3 do not resolve together.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    let workspace = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("../..");
    println!("cargo:rerun-if-changed=build.rs");
    println!(
        "cargo:rerun-if-changed={}",
        workspace.join("Cargo.lock").display()
    );

    let version = if env::var_os("CARGO_FEATURE_P3").is_some() {
        "p3"
    } else {
        "p2"
    };
    let macro_text = format!(
        "#[doc(hidden)] #[macro_export] macro_rules! bindings {{ ($world:tt, $with:tt) => {{ \
             $crate::wit_bindgen::generate!({{ path: [{:?}, {:?}], world: $world, with: $with, \
             generate_all, runtime_path: \"::guest_http::wit_bindgen::rt\" }}); }} }}",
        shipped_with(version).join("wit"),
        workspace.join("wit").join(version),
    );
    fs::write(
        Path::new(&variable("OUT_DIR")).join("bindings.rs"),
        macro_text,
    )
    .expect("cargo gives a folder that can be written to");
}

/// The folder into which cargo unpacked the crate of bindings for `version`.
fn shipped_with(version: &str) -> PathBuf {
    let name = format!("wasi{version}");
    let output = Command::new(variable("CARGO"))
        .args(["metadata", "--locked", "--format-version=1"])
        .args(["--filter-platform", &variable("TARGET")])
        .args(["--features", version])
        .output()
        .expect("cargo runs, since it runs this");
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!(
                "cargo metadata: {error}\n{}",
                String::from_utf8_lossy(&output.stderr)
            )
        });
    let manifest = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|package| package["name"] == name)
        .and_then(|package| package["manifest_path"].as_str())
        .unwrap_or_else(|| panic!("{name} is no dependency of this crate"));
    Path::new(manifest)
        .parent()
        .expect("a manifest lies in a folder")
        .into()
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
