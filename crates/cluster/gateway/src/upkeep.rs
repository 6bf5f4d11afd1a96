//! What a gateway does by itself: renews its leases, frees garbage, and carries out lifecycle rules.

pub mod compact;
pub mod expire;
pub mod janitor;
pub mod leases;
pub mod moves;

/// Returns at that time; never, if there is none.
async fn due(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
