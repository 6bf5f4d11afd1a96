//! The gateway against an in-memory cluster: real S3 clients over HTTP, and the promises that no client can see.

use super::memory::Memory;
use super::{GatewayConfig, serve};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use tokio::net::TcpListener;

const ACCESS_KEY: &str = "testkey";
const SECRET_KEY: &str = "testsecret0123456789";

/// Serves `backend` on a thread of its own until the test program ends. Returns the endpoint.
fn serve_in_background(backend: Arc<Memory>) -> String {
    let (ready, address) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            ready.send(listener.local_addr().unwrap()).unwrap();
            let keys = [(ACCESS_KEY.to_owned(), SECRET_KEY.to_owned())].into();
            serve(listener, GatewayConfig { keys }, backend).await;
        });
    });
    format!("http://{}", address.recv().unwrap())
}

/// `EBB_TEST_ARGS` may hold arguments for the script, such as `-v Objects`.
#[test]
fn real_clients_agree() {
    let endpoint = serve_in_background(Arc::new(Memory::new(4 << 20)));
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own_python = crate_dir.join("../../.venv/bin/python");
    let python = if own_python.exists() { own_python } else { "python3".into() };
    let arguments = std::env::var("EBB_TEST_ARGS").unwrap_or_default();
    let status = Command::new(python)
        .arg(crate_dir.join("tests/s3_clients.py"))
        .args(arguments.split_whitespace())
        .env("EBB_S3_ENDPOINT", endpoint)
        .env("EBB_S3_ACCESS_KEY", ACCESS_KEY)
        .env("EBB_S3_SECRET_KEY", SECRET_KEY)
        .status()
        .expect("python3 runs: scripts/install-test-tools installs it");
    assert!(status.success(), "see above; if a module or program is missing, run scripts/install-test-tools");
}

/// Not a test: serves an empty in-memory cluster until it is killed, to measure the gateway alone.
#[test]
#[ignore = "serves until killed"]
fn serve_in_memory() {
    let endpoint = serve_in_background(Arc::new(Memory::new(64 << 20)));
    println!("EBB_S3_ENDPOINT={endpoint} EBB_S3_ACCESS_KEY={ACCESS_KEY} EBB_S3_SECRET_KEY={SECRET_KEY}");
    loop {
        std::thread::park();
    }
}
