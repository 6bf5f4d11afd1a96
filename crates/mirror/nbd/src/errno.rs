//! Why a request fails.

/// Why a request failed: the numbers that the protocol allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Errno {
    #[error("it is not permitted")]
    NotPermitted = 1,
    #[error("the storage failed")]
    Io = 5,
    #[error("the request is invalid")]
    Invalid = 22,
    #[error("there is no space left")]
    NoSpace = 28,
    /// For a read in one piece only.
    #[error("it is too long for one piece")]
    TooLarge = 75,
    /// For a fast [`crate::Request::WriteZeroes`] only.
    #[error("it would not be fast")]
    NotSupported = 95,
    #[error("the server is shutting down")]
    ShuttingDown = 108,
}

/// Why a request is not carried out.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub errno: Errno,
    pub message: String,
}
