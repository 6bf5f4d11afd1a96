//! Counts of what a shell does, by kind: an increment each, and a name each for who looks.

/// Declares the kinds of a shell's actions with their names, as `Action`, and `Actions`, which counts them.
#[macro_export]
macro_rules! actions {
    ($($action:ident $name:literal)*) => {
        #[derive(Clone, Copy)]
        pub(crate) enum Action {
            $($action),*
        }

        const NAMES: &[&str] = &[$($name),*];

        /// How often each action ran, since the start.
        #[derive(Default)]
        pub(crate) struct Actions([u64; NAMES.len()]);

        impl Actions {
            fn ran(&mut self, action: Action) {
                self.0[action as usize] += 1;
            }

            pub(crate) fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
                NAMES.iter().copied().zip(self.0)
            }
        }
    };
}
