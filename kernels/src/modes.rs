//! How the processor rounds, and what it makes of subnormal numbers: settings of every thread, which programs change for
//! their own arithmetic, as `torch.set_flush_denormal(True)` does. Ranks that reduce the same contributions have to
//! get the same bits, whatever the settings of the threads that call.

/// While it lives, the thread rounds to nearest, ties to even, and leaves subnormal numbers as they are. Then it has its
/// own settings again.
///
/// On processors other than x86-64 it does nothing.
#[derive(Debug)]
pub(crate) struct DefaultModes {
    /// What the thread had, if that is something else.
    #[cfg(target_arch = "x86_64")]
    before: Option<u32>,
}

#[cfg(not(target_arch = "x86_64"))]
impl DefaultModes {
    pub(crate) fn set() -> Self {
        Self {}
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;

    use super::DefaultModes;

    /// What threads begin with: no exception traps.
    const DEFAULT: u32 = 0x1f80;

    /// What has happened so far, which decides nothing.
    const FLAGS: u32 = 0x3f;

    impl DefaultModes {
        #[inline(always)]
        pub(crate) fn set() -> Self {
            let before = read();
            if before & !FLAGS == DEFAULT {
                return Self { before: None };
            }
            write(DEFAULT);
            Self { before: Some(before) }
        }
    }

    impl Drop for DefaultModes {
        #[inline(always)]
        fn drop(&mut self) {
            if let Some(before) = self.before {
                write(before);
            }
        }
    }

    #[inline(always)]
    fn read() -> u32 {
        let mut modes = 0;
        // SAFETY: every x86-64 processor has the instruction, which writes these four bytes and nothing else.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut modes, options(nostack, preserves_flags)) };
        modes
    }

    #[cold]
    fn write(modes: u32) {
        // SAFETY: every x86-64 processor has the instruction, which reads these four bytes. They are those that the
        // compiler takes for granted, or what `read` has found.
        unsafe {
            asm!("ldmxcsr [{}]", in(reg) &raw const modes, options(nostack, preserves_flags));
        }
    }
}
