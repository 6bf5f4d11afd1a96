//! Values by number, whose numbers are reused: the one that became free last first.

pub struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub fn put(&mut self, value: T) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() as u32 - 1
        });
        self.places[place as usize] = Some(value);
        place
    }

    pub fn get(&mut self, place: u32) -> Option<&mut T> {
        self.places.get_mut(place as usize)?.as_mut()
    }

    pub fn take(&mut self, place: u32) -> Option<T> {
        let value = self.places.get_mut(place as usize)?.take()?;
        self.free.push(place);
        Some(value)
    }

    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// The numbers of those of which this is true, in order.
    pub fn numbers(&self, is_meant: impl Fn(&T) -> bool) -> Vec<u32> {
        let meant = |place: &Option<T>| place.as_ref().is_some_and(&is_meant);
        (0..).zip(&self.places).filter(|(_, place)| meant(place)).map(|(n, _)| n).collect()
    }
}
