//! boto3, awscli, rclone, restic, s3cmd and others against a whole cluster: `s3_clients.py` on `ebb dev`.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A cluster that is stopped however the test ends.
struct Dev(Child);

impl Drop for Dev {
    fn drop(&mut self) {
        // An interrupt lets it stop its servers.
        let stopped = Command::new("kill").args(["-INT", &self.0.id().to_string()]).status();
        if !stopped.is_ok_and(|status| status.success()) {
            let _ = self.0.kill();
        }
        let _ = self.0.wait();
    }
}

/// Output of `ebb dev --json` once the cluster is ready.
fn ready(dev: &mut Dev) -> serde_json::Value {
    let mut text = String::new();
    let mut lines = BufReader::new(dev.0.stdout.take().unwrap());
    while lines.read_line(&mut text).unwrap() > 0 {
        if let Ok(value) = serde_json::from_str(&text) {
            // Read all later output, so that it never blocks on a full pipe.
            std::thread::spawn(move || lines.read_to_end(&mut Vec::new()));
            return value;
        }
    }
    panic!("`ebb dev` ended before it was ready: {text}");
}

/// `EBB_TEST_ARGS` may hold arguments for the script, such as `-v Objects`.
#[test]
fn real_clients_agree() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own_python = crate_dir.join("../../.venv/bin/python");
    let python = if own_python.exists() { own_python } else { "python3".into() };
    let boto3 = Command::new(&python).args(["-c", "import boto3"]).output();
    if !boto3.is_ok_and(|ran| ran.status.success()) {
        return ebb_testing::skip("python3 with boto3 is not installed");
    }
    let child = Command::new(env!("CARGO_BIN_EXE_ebb"))
        .args(["dev", "--ephemeral", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut dev = Dev(child);
    let cluster = ready(&mut dev);
    let text = |key: &str| cluster[key].as_str().unwrap_or_else(|| panic!("{key} in {cluster}")).to_owned();
    let status = Command::new(python)
        .arg(crate_dir.join("tests/s3_clients.py"))
        .args(std::env::var("EBB_TEST_ARGS").unwrap_or_default().split_whitespace())
        .env("EBB_S3_ENDPOINT", text("endpoint"))
        .env("EBB_S3_ACCESS_KEY", text("access_key"))
        .env("EBB_S3_SECRET_KEY", text("secret_key"))
        .status()
        .expect("python3 runs: scripts/install-test-tools installs it");
    assert!(status.success(), "see above; if a module or program is missing, run scripts/install-test-tools");
}
