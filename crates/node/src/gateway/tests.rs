//! The gateway against an in-memory cluster: real S3 clients over HTTP, and the promises that no client can see.

use super::backend::BackendError;
use super::memory::Memory;
use super::{GatewayConfig, serve};
use std::sync::Arc;
use tokio::net::TcpListener;

#[tokio::test]
async fn placeholder() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let backend = Arc::new(Memory::new(1 << 20));
    backend.break_chunks(Some(BackendError::NoSpace));
    let _ = (backend.counts(), backend.used_bytes());
    let _ = tokio::time::timeout(
        std::time::Duration::from_millis(1),
        serve(listener, GatewayConfig::default(), backend),
    )
    .await;
}
