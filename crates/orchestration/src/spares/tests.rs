//! Spares as the engine keeps and uses them.
