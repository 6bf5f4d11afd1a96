//! Which crates a change concerns: those with a changed file, those that read one from elsewhere in the checkout (a
//! page or an example that is tested), and all that depend on them.

use crate::tidy::Tree;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The packages of what is not committed yet; of the last commit where all is.
pub fn packages(root: &Path) -> Result<BTreeSet<String>, String> {
    let tree = Tree::load(root)?;
    let mut files = git(root, &["status", "--porcelain", "--untracked-files=all", "--no-renames"])?
        .lines()
        .filter_map(|line| line.get(3..).map(str::to_owned))
        .collect::<Vec<_>>();
    if files.is_empty() {
        let last = git(root, &["diff", "--name-only", "--no-renames", "HEAD~1", "HEAD"])?;
        files = last.lines().map(str::to_owned).collect();
    }
    // A file of a crate stands for the file that it reads.
    let outside = files.iter().filter(|file| !file.starts_with("crates/") && !file.starts_with("xtask/"));
    let readers: Vec<String> = outside.flat_map(|file| readers(&tree, file)).collect();
    files.extend(readers);
    let edges: Vec<(String, String, Vec<String>)> = tree
        .packages
        .iter()
        .map(|package| {
            let folder = package.manifest.parent().map_or(String::new(), |folder| tree.name(folder));
            (package.name.clone(), folder, package.dependencies.clone())
        })
        .collect();
    Ok(concerned(&edges, &files))
}

/// The sources that name a file, or its folder.
fn readers(tree: &Tree, file: &str) -> Vec<String> {
    let sources = tree.all_sources().into_iter();
    sources.filter(|source| names(&tree.text(source), file)).map(|source| tree.name(&source)).collect()
}

/// Whether code names a file of the checkout, or the folder that it is in, if that is below another one.
fn names(source: &str, file: &str) -> bool {
    let folder = file.rsplit_once('/').map(|(folder, _)| folder).filter(|folder| folder.contains('/'));
    let code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.into_iter().any(|line| line.contains(file) || folder.is_some_and(|folder| line.contains(folder)))
}

fn git(root: &Path, args: &[&str]) -> Result<String, String> {
    let out = Command::new("git").args(args).current_dir(root).output().map_err(|e| format!("git: {e}"))?;
    match out.status.success() {
        true => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&out.stderr).into_owned()),
    }
}

/// `edges`: name, folder and dependencies of each package. A changed lock file or root manifest concerns all.
fn concerned(edges: &[(String, String, Vec<String>)], files: &[String]) -> BTreeSet<String> {
    let all =
        files.iter().any(|file| ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml"].contains(&file.as_str()));
    let is_in =
        |folder: &str, file: &str| file.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
    let has_change = |folder: &str| all || files.iter().any(|file| is_in(folder, file));
    let mut found: BTreeSet<String> =
        edges.iter().filter(|(_, folder, _)| has_change(folder)).map(|(name, ..)| name.clone()).collect();
    loop {
        let depends = |needs: &[String]| needs.iter().any(|need| found.contains(need));
        let more: Vec<String> = edges
            .iter()
            .filter(|(name, _, needs)| !found.contains(name) && depends(needs))
            .map(|(name, ..)| name.clone())
            .collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reads_a_page_is_concerned() {
        let source =
            "// docs/wire.md\nlet page = read(\"../../docs/metrics.md\");\nfolder(\"examples/monitoring\");";
        assert!(names(source, "docs/metrics.md") && names(source, "examples/monitoring/alerts.yml"));
        assert!(!names(source, "docs/wire.md") && !names(source, "examples/cluster.toml"));
    }

    #[test]
    fn what_depends_on_a_change_is_concerned() {
        let edge = |name: &str, folder: &str, needs: &[&str]| {
            (name.to_owned(), folder.to_owned(), needs.iter().map(|n| (*n).to_owned()).collect())
        };
        let edges = [
            edge("a", "crates/a", &[]),
            edge("b", "crates/b", &["a"]),
            edge("c", "crates/c", &["b"]),
            edge("d", "crates/d", &[]),
        ];
        let of = |file: &str| concerned(&edges, &[file.to_owned()]).into_iter().collect::<Vec<_>>().join(" ");
        assert_eq!(of("crates/b/src/lib.rs"), "b c");
        assert_eq!(of("crates/bb/src/lib.rs"), "");
        assert_eq!(of("docs/wire.md"), "");
        assert_eq!(of("Cargo.lock"), "a b c d");
    }
}
