//! Requests arrive in the world.

use crate::request::harness::World;
use crate::request::later::Later;

impl World<'_> {
    pub fn requests_arrive(&mut self) {
        let now = self.now;
        loop {
            let feed = &mut self.models().feed;
            match feed.at(feed.next) {
                Some(at) if at <= now => {
                    let (request, since) = (feed.requests[feed.next], now - feed.start);
                    feed.next += 1;
                    self.request_arrives(since, &request);
                }
                Some(at) => return self.its_at(at, Later::Arrivals),
                None => return,
            }
        }
    }

    /// A request of this host was answered.
    pub fn host_goes_on(&mut self, host: u32) {
        let now = self.now;
        let Some(closed) = &mut self.models().closed else { return };
        let (count, at) = &mut closed.ended[host as usize];
        (*count, *at) = (*count + 1, now);
        self.send_next(host as usize);
    }

    pub fn send_next(&mut self, client: usize) {
        let now = self.now;
        let Some(closed) = &mut self.models().closed else { return };
        let Some(request) = closed.clients[client].get(closed.next[client]).copied() else { return };
        closed.next[client] += 1;
        let at = now - closed.since;
        self.request_arrives_at(client as u32, at, &request);
    }
}
