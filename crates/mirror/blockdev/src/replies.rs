//! What carries out requests, and how its replies find their connections.

use crate::state::State;
use bytes::BytesMut;
use ebb_nbd::{Reply, Request};
use std::cell::RefCell;
use std::rc::Rc;

/// Names a request of any connection until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    pub(crate) place: usize,
    /// Distinguishes the connections that had the place.
    pub(crate) connection: u64,
    pub(crate) id: u64,
}

/// What carries out requests.
pub trait Backend: 'static {
    /// Begins a request to the export with this index. It is answered once, with [`Replies::reply`], from within this
    /// call or later. It is within the export and whole blocks; [`Request`] says more.
    fn request(&self, id: RequestId, export: usize, request: Request);
}

#[derive(Default)]
struct Place {
    connection: u64,
    /// Absent: free.
    state: Option<Rc<RefCell<State>>>,
}

#[derive(Default)]
struct Places {
    places: Vec<Place>,
    free: Vec<usize>,
    connections: u64,
    /// The input buffer of a connection that fell idle, for the next one that wakes.
    spare: BytesMut,
}

/// Takes a backend's replies to their connections. Clones share the connections, of one listener or several.
#[derive(Clone, Default)]
pub struct Replies {
    places: Rc<RefCell<Places>>,
}

impl Replies {
    pub fn new() -> Replies {
        Replies::default()
    }

    /// Answers a request. The reply must be of its kind ([`ebb_nbd::Session::reply`]). Sent when the caller next yields
    /// to the runtime; dropped if the connection has ended.
    pub fn reply(&self, id: RequestId, reply: Reply) {
        let places = self.places.borrow();
        let place = &places.places[id.place];
        if let Some(state) = &place.state
            && place.connection == id.connection
        {
            state.borrow_mut().reply(id.id, reply);
        }
    }

    /// Connections that are open.
    pub fn connections(&self) -> usize {
        let places = self.places.borrow();
        places.places.len() - places.free.len()
    }

    /// Returns the name of the connection's requests; their `id` is to be filled in.
    pub(crate) fn add(&self, state: Rc<RefCell<State>>) -> RequestId {
        let mut places = self.places.borrow_mut();
        places.connections += 1;
        let connection = places.connections;
        let place = places.free.pop().unwrap_or_else(|| {
            places.places.push(Place::default());
            places.places.len() - 1
        });
        places.places[place] = Place { connection, state: Some(state) };
        RequestId { place, connection, id: 0 }
    }

    pub(crate) fn remove(&self, place: usize) {
        let mut places = self.places.borrow_mut();
        let state = places.places[place].state.take();
        debug_assert!(state.is_some(), "two connections would get the place");
        places.free.push(place);
    }

    pub(crate) fn take_buffer(&self) -> BytesMut {
        std::mem::take(&mut self.places.borrow_mut().spare)
    }

    pub(crate) fn give_buffer(&self, buffer: BytesMut) {
        self.places.borrow_mut().spare = buffer;
    }
}
