//! Random numbers that depend on a seed alone.

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
#[derive(Clone, Debug)]
pub(crate) struct SplitMix64(u64);

impl SplitMix64 {
    /// A sequence of its own for each list of numbers: neighbouring numbers give unrelated ones.
    pub(crate) fn of(numbers: &[u64]) -> Self {
        numbers.iter().fold(Self(0), |state, &number| Self(Self(state.0.wrapping_add(number)).next()))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform over [0, 1) in steps of 2⁻⁵³.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Normal with mean 0 and variance 1 (Box and Muller, 1958).
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_of_neighbouring_numbers_share_nothing() {
        let mut seen = std::collections::HashSet::new();
        for seed in 0..20 {
            for index in 0..20 {
                let mut random = SplitMix64::of(&[seed, index]);
                assert!((0..200).all(|_| seen.insert(random.next())));
            }
        }
    }

    #[test]
    fn follows_the_published_sequence() {
        let mut random = SplitMix64(1234567);
        let published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431];
        assert_eq!(published.map(|_| random.next()), published);
    }
}
