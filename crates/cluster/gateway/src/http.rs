//! From a connection to a request that is understood and allowed, and from its outcome to a response.

pub mod answer;
pub mod body;
pub mod chunked;
pub mod connections;
pub mod document;
pub mod form;
pub mod front;
pub mod limits;
pub mod rights;
pub mod understood;
