// The queue moves by itself.
import { follow } from "./page.js";

follow(() => 5, () => true);
