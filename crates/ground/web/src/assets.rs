//! The page's files, in the program.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;

/// A file that a browser asks for.
pub(crate) struct Asset {
    pub path: &'static str,
    pub kind: &'static str,
    pub bytes: &'static [u8],
}

macro_rules! asset {
    ($path:literal, $file:literal, $kind:expr) => {
        Asset { path: $path, kind: $kind, bytes: include_bytes!(concat!("../assets/", $file)) }
    };
}

const MODULE: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// The page of the lab.
pub(crate) const LAB: &str = "/lab.html";

/// The first is the page itself.
pub(crate) const ASSETS: &[Asset] = &[
    asset!("/", "index.html", "text/html; charset=utf-8"),
    asset!("/page.css", "page.css", STYLE),
    asset!("/icon.svg", "icon.svg", "image/svg+xml"),
    asset!("/main.js", "main.js", MODULE),
    asset!("/link.js", "link.js", MODULE),
    asset!("/follow.js", "follow.js", MODULE),
    asset!("/confirm.js", "confirm.js", MODULE),
    asset!("/words.js", "words.js", MODULE),
    asset!("/now.js", "now.js", MODULE),
    asset!("/chart.js", "chart.js", MODULE),
    asset!("/strip.js", "strip.js", MODULE),
    asset!("/why.js", "why.js", MODULE),
    asset!("/act.js", "act.js", MODULE),
    asset!("/browse.js", "browse.js", MODULE),
    asset!("/whatif.js", "whatif.js", MODULE),
    asset!("/lab.html", "lab.html", "text/html; charset=utf-8"),
    asset!("/lab.css", "lab.css", STYLE),
    asset!("/lab.js", "lab.js", MODULE),
    asset!("/labquery.js", "labquery.js", MODULE),
    asset!("/lablive.js", "lablive.js", MODULE),
    asset!("/labplan.js", "labplan.js", MODULE),
    asset!("/labchart.js", "labchart.js", MODULE),
    asset!("/uPlot.esm.js", "uPlot.esm.js", MODULE),
    asset!("/uPlot.min.css", "uPlot.min.css", STYLE),
];

/// Other assets have another version.
pub(crate) fn version() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| {
        let mut hasher = DefaultHasher::new();
        ASSETS.iter().for_each(|asset| (asset.path, asset.bytes).hash(&mut hasher));
        format!("{:016x}", hasher.finish())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use sha2::{Digest, Sha256};
    use std::collections::BTreeSet;
    use std::io::Write;

    /// All of them together, as gzip packs them.
    const PACKED_MOST: usize = 150_000;

    #[test]
    fn all_assets_are_small() {
        let packed = |asset: &Asset| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
            encoder.write_all(asset.bytes).unwrap();
            encoder.finish().unwrap().len()
        };
        let total: usize = ASSETS.iter().map(packed).sum();
        println!("{total} bytes packed");
        assert!(total < PACKED_MOST, "{total} bytes packed");
    }

    fn text(path: &str) -> &'static str {
        let asset = ASSETS.iter().find(|asset| asset.path == path).unwrap_or_else(|| panic!("{path}"));
        std::str::from_utf8(asset.bytes).unwrap()
    }

    /// Else a browser finds it only once it has read what imports it.
    #[test]
    fn a_page_names_each_module_that_it_will_need() {
        for (page, first) in [("/", "/main.js"), (LAB, "/lab.js")] {
            let (mut needs, mut next) = (BTreeSet::new(), vec![first.to_owned()]);
            while let Some(module) = next.pop() {
                let imports = text(&module).lines().filter_map(|line| line.split_once(" from './"));
                next.extend(imports.map(|(_, rest)| format!("/{}", rest.trim_end_matches("';"))));
                next.retain(|path| !needs.contains(path));
                needs.insert(module);
            }
            let named = |module: &String| text(page).contains(&format!("=\"{module}\""));
            let missing: Vec<_> = needs.iter().filter(|module| !named(module)).collect();
            assert!(missing.is_empty() && needs.len() > 8, "{page}: {missing:?} of {needs:?}");
            let preloads = text(page).matches("modulepreload").count();
            assert_eq!(preloads, needs.len() - 1, "{page} has what it needs and no more");
        }
    }

    #[test]
    fn vendored_files_are_what_their_list_says() {
        let list: toml::Table = include_str!("../assets/VENDORED.toml").parse().unwrap();
        let files = list["file"].as_array().unwrap();
        let mut listed = Vec::new();
        for file in files {
            let text = |key: &str| file[key].as_str().unwrap();
            let asset = ASSETS.iter().find(|asset| asset.path == format!("/{}", text("name"))).unwrap();
            let sum = ebb_types::hex(&Sha256::digest(asset.bytes));
            assert_eq!(sum, text("sha256"), "{}", text("name"));
            assert!(["version", "licence", "from"].iter().all(|key| !text(key).is_empty()));
            listed.push(asset.path);
        }
        let others = ASSETS.iter().filter(|asset| asset.path.contains("uPlot")).map(|asset| asset.path);
        assert_eq!(others.collect::<Vec<_>>(), listed);
    }

    #[test]
    fn every_file_is_served_and_asks_no_other_origin() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/assets");
        let mut served = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let path = if name == "index.html" { "/".to_owned() } else { format!("/{name}") };
            served += usize::from(ASSETS.iter().any(|asset| asset.path == path));
            assert!(name.ends_with(".toml") || ASSETS.iter().any(|asset| asset.path == path), "{name}");
        }
        assert_eq!(served, ASSETS.len());
        for asset in ASSETS.iter().filter(|asset| !asset.path.contains("uPlot")) {
            let text = std::str::from_utf8(asset.bytes).unwrap().replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains("http://") && !text.contains("https://"), "{}", asset.path);
            assert!(
                !text.contains(" style=\"") && !text.contains("onclick="),
                "{}: CSP forbids it",
                asset.path
            );
        }
    }
}
