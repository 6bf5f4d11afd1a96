//! A value for some of the servers, with constant-time lookup by id: a plan asks for every slot of every group.

use ebb_types::{ServerEntry, ServerId};
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub struct ByServer<T>(Vec<Option<T>>);

impl<T> FromIterator<(ServerId, T)> for ByServer<T> {
    fn from_iter<I: IntoIterator<Item = (ServerId, T)>>(all: I) -> ByServer<T> {
        let mut places = Vec::new();
        for (ServerId(id), value) in all {
            let place = usize::from(id);
            if place >= places.len() {
                places.resize_with(place + 1, || None);
            }
            places[place] = Some(value);
        }
        ByServer(places)
    }
}

impl<T> ByServer<T> {
    pub fn get(&self, id: ServerId) -> Option<&T> {
        self.0.get(usize::from(id.0))?.as_ref()
    }

    pub fn get_mut(&mut self, id: ServerId) -> Option<&mut T> {
        self.0.get_mut(usize::from(id.0))?.as_mut()
    }

    pub fn has(&self, id: ServerId) -> bool {
        self.get(id).is_some()
    }

    pub fn iter(&self) -> impl Iterator<Item = (ServerId, &T)> {
        (0..).map(ServerId).zip(&self.0).filter_map(|(id, value)| Some((id, value.as_ref()?)))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (ServerId, &mut T)> {
        (0..).map(ServerId).zip(&mut self.0).filter_map(|(id, value)| Some((id, value.as_mut()?)))
    }
}

impl ByServer<()> {
    /// The servers of which something is true.
    pub fn those(
        servers: &BTreeMap<ServerId, ServerEntry>,
        are: impl Fn(&ServerEntry) -> bool,
    ) -> ByServer<()> {
        servers.values().filter(|entry| are(entry)).map(|entry| (entry.id, ())).collect()
    }
}
