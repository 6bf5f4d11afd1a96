//! `cargo xtask tidy`: what the compiler does not check of the house, its pages and its papers. Reads text and `cargo
//! metadata`; needs no crate of the project built.

mod assertions;
mod circles;
mod dependencies;
mod docs;
mod fields;
mod house;
mod papers;

use crate::source;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// What is wrong, each in one line that says where.
pub type Faults = Vec<String>;

/// A crate of the project.
pub struct Package {
    pub name: String,
    pub description: String,
    pub manifest: PathBuf,
    /// Crates of the project that it imports; tests may import more.
    pub imports: Vec<String>,
    /// Every dependency, of tests too.
    pub dependencies: Vec<String>,
}

/// The checkout.
pub struct Tree {
    pub root: PathBuf,
    pub packages: Vec<Package>,
}

impl Tree {
    pub fn load(root: &Path) -> Result<Tree, String> {
        let metadata = metadata(root, &["--no-deps"])?;
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let package = |package: &serde_json::Value| {
            let edges = package["dependencies"].as_array().cloned().unwrap_or_default();
            let ours =
                |edge: &&serde_json::Value| edge["kind"].as_str() != Some("dev") && edge["source"].is_null();
            Package {
                name: text(&package["name"]),
                description: text(&package["description"]),
                manifest: text(&package["manifest_path"]).into(),
                imports: edges.iter().filter(ours).map(|edge| text(&edge["name"])).collect(),
                dependencies: edges.iter().map(|edge| text(&edge["name"])).collect(),
            }
        };
        let packages = metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?;
        Ok(Tree { root: root.to_owned(), packages: packages.iter().map(package).collect() })
    }

    /// A file of the checkout; empty if there is none, which each check finds wrong in its way.
    pub fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.root.join(path)).unwrap_or_default()
    }

    pub fn text(&self, path: &Path) -> String {
        std::fs::read_to_string(path).unwrap_or_default()
    }

    /// A file's path in the checkout.
    pub fn name(&self, path: &Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).display().to_string()
    }

    /// The files of production code.
    pub fn sources(&self) -> Vec<PathBuf> {
        self.packages.iter().flat_map(|p| source::files(&p.manifest.with_file_name("src"), &[])).collect()
    }

    /// Every source file, tests and examples included.
    pub fn all_sources(&self) -> Vec<PathBuf> {
        let folders = |p: &Package| ["src", "tests", "examples"].map(|f| p.manifest.with_file_name(f));
        self.packages.iter().flat_map(folders).flat_map(|dir| source::all_files(&dir)).collect()
    }
}

/// What cargo knows of the workspace.
pub fn metadata(root: &Path, what: &[&str]) -> Result<serde_json::Value, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let out = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked"])
        .args(what)
        .current_dir(root)
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).into_owned());
    }
    serde_json::from_slice(&out.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

type Check = fn(&Tree, &mut Faults);

const CHECKS: &[(&str, Check)] = &[
    ("imports", house::imports),
    ("pure ring", house::pure_ring),
    ("files", house::files),
    ("examples", house::examples),
    ("clocks", house::clocks),
    ("circles", circles::circles),
    ("assertions", assertions::floors),
    ("fields", fields::fields),
    ("licences", dependencies::licences),
    ("unused dependencies", dependencies::unused),
    ("rules", docs::rules),
    ("links", docs::links),
    ("names on pages", docs::names),
    ("life of a write", docs::life_of_a_write),
    ("frames", docs::frames),
    ("messages", docs::messages),
    ("citation", docs::citation),
    ("papers", papers::rows),
];

/// Runs every check and prints what is wrong. Returns whether all is well.
pub fn run(root: &Path) -> bool {
    let since = Instant::now();
    let tree = match Tree::load(root) {
        Ok(tree) => tree,
        Err(why) => {
            eprintln!("tidy: {why}");
            return false;
        }
    };
    let mut count = 0;
    for (name, check) in CHECKS {
        let mut faults = Faults::new();
        check(&tree, &mut faults);
        count += faults.len();
        faults.iter().for_each(|fault| eprintln!("{name}: {fault}"));
    }
    let (checks, seconds) = (CHECKS.len(), since.elapsed().as_secs_f64());
    match count {
        0 => println!("tidy: {checks} checks, nothing found ({seconds:.1} s)"),
        _ => eprintln!("tidy: {count} found by {checks} checks ({seconds:.1} s)"),
    }
    count == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each check reads what it says: in an empty checkout it finds that all is missing, or that nothing is there to be
    /// wrong.
    #[test]
    fn an_empty_checkout_is_not_tidy() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree { root: dir.path().to_owned(), packages: Vec::new() };
        for (name, check) in CHECKS {
            let mut faults = Faults::new();
            check(&tree, &mut faults);
            // These look at crates, and there is none.
            let needs_a_crate =
                ["pure ring", "files", "examples", "circles", "licences", "unused dependencies"]
                    .contains(name);
            assert_eq!(faults.is_empty(), needs_a_crate, "{name}: {faults:?}");
        }
    }
}
