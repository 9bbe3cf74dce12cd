//! Kernel tables: what a row is and how one is chosen.
//!
//! A row's name is `<kernel>_<element>__<instruction set>[_<tile>]`, as `conv_forward_f32__avx512_14x32`.

use crate::isa::Isa;

/// One kernel implementation for shapes of type `S`.
pub trait Row<S> {
    /// The name, unique over all tables.
    fn name(&self) -> &'static str;

    /// The instruction set the row needs.
    fn isa(&self) -> Isa;

    /// Whether the row computes this shape. The scalar row handles every shape.
    fn handles(&self, shape: &S) -> bool;
}

/// The first row of `table` whose instruction set is at most `limit` and available, and that handles `shape`.
///
/// Tables are ordered fastest first and end with the scalar row, which is taken when no other fits.
pub fn choose<R: Row<S>, S>(table: &'static [R], limit: Isa, shape: &S) -> &'static R {
    table
        .iter()
        .find(|row| row.isa() <= limit && row.isa().available() && row.handles(shape))
        .unwrap_or(&table[table.len() - 1])
}

/// Declares a kernel's row type and implements [`Row`] for it.
macro_rules! kernel_row {
    ($(#[$doc:meta])* $row:ident, $shape:ty, $args:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $row<E: 'static> {
            /// The name, unique over all tables.
            pub name: &'static str,
            /// The instruction set the row needs.
            pub isa: $crate::isa::Isa,
            /// Whether the row computes this shape.
            pub handles: fn(&$shape) -> bool,
            /// The least length of `scratch`, in elements, for a shape on a pool of that many threads.
            pub scratch: fn(&$shape, usize) -> usize,
            /// Computes. Panics when a slice has not the length that the shape asks for.
            pub run: fn(&$shape, $args<'_, E>, &$crate::threads::Pool),
        }

        impl<E> $crate::table::Row<$shape> for $row<E> {
            fn name(&self) -> &'static str {
                self.name
            }
            fn isa(&self) -> $crate::isa::Isa {
                self.isa
            }
            fn handles(&self, shape: &$shape) -> bool {
                (self.handles)(shape)
            }
        }
    };
}

pub(crate) use kernel_row;

/// The `handles` of a row that computes every shape.
pub(crate) fn any<S>(_: &S) -> bool {
    true
}

/// The `scratch` of a row that needs none.
pub(crate) fn no_scratch<S>(_: &S, _: usize) -> usize {
    0
}

/// Declares the tables of a kernel whose one generic body is compiled once per instruction set.
///
/// `driver(shape, args, pool, body)` cuts the work and calls the body, whose arguments, for `f32`, are listed.
macro_rules! compiled_tables {
    (
        $f32:ident, $f64:ident: $row:ident, scratch: $scratch:path,
        names: [$avx512:literal, $avx2:literal, $scalar:literal, $scalar_f64:literal],
        $driver:ident($body:path: ($($arg:ident: $ty:ty),*))
    ) => {
        pub(crate) static $f32: &[$row<f32>] = &[
            #[cfg(target_arch = "x86_64")]
            $row {
                name: $avx512,
                isa: $crate::isa::Isa::Avx512,
                handles: $crate::table::any,
                scratch: $scratch,
                run: |shape, args, pool| {
                    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
                    fn compiled($($arg: $ty),*) {
                        $body($($arg),*)
                    }
                    assert!($crate::isa::Isa::Avx512.available(), "this machine has no avx512");
                    // SAFETY: the instruction set is there.
                    $driver(shape, args, pool, |$($arg),*| unsafe { compiled($($arg),*) });
                },
            },
            #[cfg(target_arch = "x86_64")]
            $row {
                name: $avx2,
                isa: $crate::isa::Isa::Avx2,
                handles: $crate::table::any,
                scratch: $scratch,
                run: |shape, args, pool| {
                    #[target_feature(enable = "avx2,fma")]
                    fn compiled($($arg: $ty),*) {
                        $body($($arg),*)
                    }
                    assert!($crate::isa::Isa::Avx2.available(), "this machine has no avx2");
                    // SAFETY: the instruction set is there.
                    $driver(shape, args, pool, |$($arg),*| unsafe { compiled($($arg),*) });
                },
            },
            $row {
                name: $scalar,
                isa: $crate::isa::Isa::Scalar,
                handles: $crate::table::any,
                scratch: $scratch,
                run: |shape, args, pool| $driver(shape, args, pool, $body),
            },
        ];
        pub(crate) static $f64: &[$row<f64>] = &[$row {
            name: $scalar_f64,
            isa: $crate::isa::Isa::Scalar,
            handles: $crate::table::any,
            scratch: $scratch,
            run: |shape, args, pool| $driver(shape, args, pool, $body),
        }];
    };
}

pub(crate) use compiled_tables;

/// Declares the tables of a kernel that has scalar rows alone.
macro_rules! scalar_tables {
    ($f32:ident, $f64:ident: $row:ident, names: [$name_f32:literal, $name_f64:literal], $run:ident) => {
        pub(crate) static $f32: &[$row<f32>] = &[$row {
            name: $name_f32,
            isa: $crate::isa::Isa::Scalar,
            handles: $crate::table::any,
            scratch: $crate::table::no_scratch,
            run: $run,
        }];
        pub(crate) static $f64: &[$row<f64>] = &[$row {
            name: $name_f64,
            isa: $crate::isa::Isa::Scalar,
            handles: $crate::table::any,
            scratch: $crate::table::no_scratch,
            run: $run,
        }];
    };
}

pub(crate) use scalar_tables;
