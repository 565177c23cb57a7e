//! Builds the house guests for wasm and leaves them as components in
//! `OUT_DIR/guests/NAME-VERSION.wasm`, from where the library embeds them.
//!
//! The inner cargo gets a target directory of its own, since the outer one is
//! locked, and an environment without whatever the outer build was told about
//! flags, wrappers and profiles: that is meant for this machine, not for wasm.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

const TARGET: &str = "wasm32-wasip2";
const GUESTS: [&str; 5] = ["servlet", "remote", "hello", "route", "probe"];
/// One cargo run for each: a run that asked for both would unite the features.
const VERSIONS: [&str; 2] = ["p2", "p3"];
/// Small and fast. Function names stay, for the backtrace of a trap.
const PROFILE: [(&str, &str); 5] = [
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "none"),
    ("CARGO_PROFILE_RELEASE_LTO", "fat"),
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "3"),
    ("CARGO_PROFILE_RELEASE_STRIP", "debuginfo"),
];
/// What of the outer environment says where crates come from, and how many
/// jobs may run.
const KEPT: [&str; 6] = [
    "CARGO_HOME",
    "CARGO_HTTP_",
    "CARGO_MAKEFLAGS",
    "CARGO_NET_",
    "CARGO_REGISTR",
    "CARGO_SOURCE_",
];

fn main() {
    let workspace = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("..");
    for input in [
        "Cargo.lock",
        "Cargo.toml",
        "guest",
        "rust-toolchain.toml",
        "wit",
    ] {
        println!(
            "cargo::rerun-if-changed={}",
            workspace.join(input).display()
        );
    }
    println!("cargo::rerun-if-changed=build.rs");

    if !target_is_installed() {
        println!("cargo::error=the guests are compiled to wasm: run `rustup target add {TARGET}`");
        return;
    }
    let out = PathBuf::from(variable("OUT_DIR"));
    let guests = out.join("guests");
    fs::create_dir_all(&guests).expect("cargo gives a folder that can be written to");
    for version in VERSIONS {
        let target_dir = out.join("target");
        if !build(version, &workspace, &target_dir) {
            // Not as an error of this script: that would hide what cargo said.
            std::process::exit(1);
        }
        for guest in GUESTS {
            let built = target_dir
                .join(TARGET)
                .join("release")
                .join(format!("{guest}.wasm"));
            fs::copy(&built, guests.join(format!("{guest}-{version}.wasm")))
                .unwrap_or_else(|error| panic!("{}: {error}", built.display()));
        }
    }
}

/// Asks the compiler, so that it also holds where there is no rustup.
fn target_is_installed() -> bool {
    let output = Command::new(variable("RUSTC"))
        .args(["--print", "target-libdir", "--target", TARGET])
        .output()
        .expect("the compiler runs");
    let folder = String::from_utf8_lossy(&output.stdout);
    output.status.success() && Path::new(folder.trim()).is_dir()
}

fn build(version: &str, workspace: &Path, target_dir: &Path) -> bool {
    let mut cargo = Command::new(variable("CARGO"));
    cargo.args([
        "build",
        "--locked",
        "--release",
        "--target",
        TARGET,
        "--target-dir",
    ]);
    cargo.arg(target_dir);
    for guest in GUESTS {
        cargo.args([
            "--package",
            guest,
            "--features",
            &format!("{guest}/{version}"),
        ]);
    }
    for (name, _) in env::vars_os().filter(|(name, _)| !is_kept(name)) {
        cargo.env_remove(name);
    }
    // Empty, these three also overrule a configuration file.
    cargo.env("CARGO_ENCODED_RUSTFLAGS", "");
    cargo
        .env("RUSTC_WRAPPER", "")
        .env("RUSTC_WORKSPACE_WRAPPER", "");
    cargo
        .envs(PROFILE)
        .current_dir(workspace)
        .stdout(Stdio::null());
    cargo
        .status()
        .expect("cargo runs, since it runs this")
        .success()
}

fn is_kept(name: &OsString) -> bool {
    let name = name.to_string_lossy();
    let of_cargo = name.starts_with("CARGO_") || name.starts_with("DEP_");
    let flags = ["RUSTFLAGS", "RUSTDOCFLAGS", "CARGO"].contains(&&*name);
    !flags && (!of_cargo || KEPT.iter().any(|kept| name.starts_with(kept)))
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
